//! Merges the sources: default < TOML file < environment and flags, which clap has merged.

use std::path::Path;

use serde::Serialize;

use super::{Config, ConfigError, ConfigOverrides};

/// Reads `file` if one is given, applies `overrides` to it and validates the result.
///
/// # Errors
/// The file can't be read, holds an unknown or mistyped setting, or the settings are not valid.
pub fn load(file: Option<&Path>, overrides: &ConfigOverrides) -> Result<Config, ConfigError> {
    let mut config = file.map_or_else(|| Ok(Config::default()), read)?;
    overrides.apply(&mut config);
    config.validated()
}

/// The settings of a file, with defaults for what it leaves out.
fn read(file: &Path) -> Result<Config, ConfigError> {
    let text = fs_err::read_to_string(file).map_err(ConfigError::Read)?;
    toml::from_str(&text).map_err(|error| ConfigError::Malformed {
        file: file.to_owned(),
        problem: error.to_string(),
    })
}

/// A setting's value as a person would type it; empty if there is nothing worth showing.
pub(super) fn shown<T: Serialize>(value: &T) -> String {
    match toml::Value::try_from(value) {
        Ok(toml::Value::String(text)) => text,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

impl Config {
    /// These settings as a TOML file that [`load`] takes.
    ///
    /// # Panics
    /// Never: every setting has a TOML form, which a test checks.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("every setting has a TOML form")
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::{Args, Command, FromArgMatches};

    use super::*;

    fn parse(args: &[&str]) -> ConfigOverrides {
        let command = ConfigOverrides::augment_args(Command::new("test").no_binary_name(true));
        let matches = command.try_get_matches_from(args).unwrap();
        ConfigOverrides::from_arg_matches(&matches).unwrap()
    }

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dengine.toml");
        fs_err::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let (_folder, path) =
            file("name = 'a'\ndata_dir = '/tmp/a'\ntick_ms = 50\n[limits]\nmax_key_bytes = 100\n");
        let config = load(
            Some(&path),
            &parse(&["--max-key-bytes", "200", "--name", "b"]),
        )
        .unwrap();
        assert_eq!(
            (
                config.name.as_str(),
                config.tick_ms,
                config.limits.max_key_bytes
            ),
            ("b", 50, 200)
        );
        assert_eq!(
            config.limits.max_value_bytes,
            Config::default().limits.max_value_bytes
        );
    }

    #[test]
    fn a_printed_config_loads_as_itself() {
        let config = load(None, &parse(&["--name", "a", "--data-dir", "/tmp/a"])).unwrap();
        let (_folder, path) = file(&config.to_toml());
        assert_eq!(
            load(Some(&path), &ConfigOverrides::default()).unwrap(),
            config
        );
    }

    #[test]
    fn unknown_and_mistyped_settings_are_named_with_their_file() {
        let (_folder, path) = file("name = 'a'\ntick = 5\n");
        let error = load(Some(&path), &ConfigOverrides::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("dengine.toml") && error.contains("tick"),
            "{error}"
        );
        let (_folder, path) = file("[limits]\nmax_key_bytes = 'many'\n");
        let error = load(Some(&path), &ConfigOverrides::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("max_key_bytes"), "{error}");
        let error = load(
            Some(Path::new("/nowhere/x.toml")),
            &ConfigOverrides::default(),
        );
        assert!(error.unwrap_err().to_string().contains("/nowhere/x.toml"));
    }

    #[test]
    fn a_wrong_value_is_shown_with_its_line_even_if_a_flag_overrides_it() {
        for (text, wrong) in [
            ("name = 'a'\n\ntick_ms = 'often'\n", "tick_ms = 'often'"),
            ("name = 'a'\n\nlimits = 5\n", "limits = 5"),
            (
                "name = 'a'\n\nlisten_peer = 'here'\n",
                "listen_peer = 'here'",
            ),
        ] {
            let (_folder, path) = file(text);
            let error = load(Some(&path), &parse(&["--tick-ms", "50"]))
                .unwrap_err()
                .to_string();
            for part in ["dengine.toml", "line 3", wrong, "or leave it out"] {
                assert!(error.contains(part), "{part} is missing in {error}");
            }
        }
    }

    #[test]
    fn every_environment_variable_is_named_after_its_flag() {
        let command = ConfigOverrides::augment_args(Command::new("test"));
        for arg in command.get_arguments() {
            let flag = arg.get_long().expect("every setting has a flag");
            let env = format!("DENGINE_{}", flag.to_uppercase().replace('-', "_"));
            assert_eq!(
                arg.get_env().and_then(|name| name.to_str()),
                Some(env.as_str())
            );
        }
        assert_eq!(
            command.get_arguments().count(),
            Config::flag_defaults().len()
        );
    }

    #[test]
    fn flags_and_variables_are_what_deployments_name() {
        let command = ConfigOverrides::augment_args(Command::new("test"));
        for (flag, variable) in [
            ("tick-ms", "DENGINE_TICK_MS"),
            ("max-key-bytes", "DENGINE_MAX_KEY_BYTES"),
            ("log-segment-bytes", "DENGINE_LOG_SEGMENT_BYTES"),
            ("state-block-cache-bytes", "DENGINE_STATE_BLOCK_CACHE_BYTES"),
            ("snapshot-max-bytes", "DENGINE_SNAPSHOT_MAX_BYTES"),
            ("retention-seconds", "DENGINE_RETENTION_SECONDS"),
        ] {
            let arg = command
                .get_arguments()
                .find(|arg| arg.get_long() == Some(flag))
                .unwrap_or_else(|| panic!("no --{flag}"));
            assert_eq!(arg.get_env().and_then(|name| name.to_str()), Some(variable));
        }
    }
}
