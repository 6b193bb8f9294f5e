//! The macro that makes the field, default, help, flag and environment variable of a setting from
//! one declaration, so that the five can't drift apart.

/// Declares a section of settings, and what flags and environment may say about them.
///
/// The names follow from the field and the prefix of its section: `segment_bytes` in the section
/// of prefix `log_` has the flag `--log-segment-bytes` and the variable
/// `DENGINE_LOG_SEGMENT_BYTES`.
macro_rules! settings {
    (
        $(#[$meta:meta])*
        $config:ident, $overrides:ident, $prefix:literal {
            $(
                $(#[doc = $doc:literal])+
                $field:ident: $type:ty = $default:expr;
            )*
        } sections {
            $(
                $(#[doc = $section_doc:literal])+
                $section:ident: $section_config:ident, $section_overrides:ident;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $config {
            $($(#[doc = $doc])+ pub $field: $type,)*
            $($(#[doc = $section_doc])+ pub $section: $section_config,)*
        }

        impl Default for $config {
            fn default() -> Self {
                Self {
                    $($field: $default,)*
                    $($section: $section_config::default(),)*
                }
            }
        }

        #[doc = concat!("What flags and environment say about [`", stringify!($config), "`].")]
        #[derive(Clone, Debug, Default, clap::Args)]
        pub struct $overrides {
            $(
                $(#[doc = $doc])+
                #[arg(
                    id = concat!($prefix, stringify!($field)),
                    long = $crate::config::settings::flag($prefix, stringify!($field)),
                    value_name = $crate::config::settings::flag($prefix, stringify!($field)),
                    env = $crate::config::settings::variable($prefix, stringify!($field)),
                )]
                pub $field: Option<$type>,
            )*
            $(
                $(#[doc = $section_doc])+
                #[command(flatten)]
                pub $section: $section_overrides,
            )*
        }

        impl $overrides {
            /// Sets in `config` what is given here, and leaves the rest as it is.
            pub(super) fn apply(&self, config: &mut $config) {
                $(
                    if let Some(value) = &self.$field {
                        config.$field.clone_from(value);
                    }
                )*
                $(self.$section.apply(&mut config.$section);)*
            }
        }

        impl $config {
            /// Flag and default of every setting, for `--help`.
            #[must_use]
            pub fn flag_defaults() -> Vec<(String, String)> {
                use $crate::config::{load::shown, settings::flag};
                let config = Self::default();
                #[allow(unused_mut, reason = "only sections with sections extend it")]
                let mut all = vec![
                    $((flag($prefix, stringify!($field)), shown(&config.$field)),)*
                ];
                $(all.extend($section_config::flag_defaults());)*
                all
            }
        }
    };
}

pub(crate) use settings;

/// The flag of a setting, without its dashes.
pub(super) fn flag(prefix: &str, field: &str) -> String {
    format!("{prefix}{field}").replace('_', "-")
}

/// The environment variable of a setting.
pub(super) fn variable(prefix: &str, field: &str) -> String {
    format!("DENGINE_{prefix}{field}").to_uppercase()
}
