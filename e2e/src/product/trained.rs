//! Optimization by a profile: the server is built so that it counts how often its code runs, loaded
//! as people load it, and built again by what was counted
//! ([PGO](https://doc.rust-lang.org/rustc/profile-guided-optimization.html)). The load generator
//! gains by what both are made of.
//!
//! A call is a little of each of hundreds of functions. By the profile what calls run lies together,
//! apart from what hardly ever runs, and is inlined where it is called often.
//!
//! The names in a profile depend on the compiler, on the versions of all crates and on how they are
//! built, so there is one for all of these. It serves later builds of a changed source too: a function
//! that differs from the one that was counted is compiled as without a profile.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use dengine_local_kubernetes::progress::ProgressStep;
use dengine_local_kubernetes::shell;

use super::{Profile, SERVER, Trained, cargo, to_build};

/// The loads that are counted, as `dengine-e2e bench` takes them: those of d-engine's report by
/// frames and by single calls, what clients of etcd do, and what is rarer.
const LOADS: [&str; 4] = [
    "--profile quick",
    "--profile quick --wire unary",
    "--workload etcd/single-write,etcd/write,etcd/linearizable-read,etcd/serializable-read,\
     etcd/compare-and-put --total 4000 --wire etcd",
    "--workload extra/put-64k,extra/put-seen,extra/watch-1000,etcd/range-of-100 --total 300",
];
/// Versions of LLVM whose `llvm-profdata` may understand what rustc's counts; the newest first.
const LLVM_VERSIONS: std::ops::RangeInclusive<u32> = 19..=40;
/// Where instrumented programs write what they counted when they end. It takes the place of what
/// they were built with.
const COUNTED_BY: &str = "LLVM_PROFILE_FILE";
/// What Cargo hands to the compiler.
pub(super) const FLAGS: &str = "CARGO_ENCODED_RUSTFLAGS";

/// What Cargo is told so that a build uses the profile, which is made if there is none.
///
/// # Errors
/// When a program cannot be built or does not stand the load, or no `llvm-profdata` understands
/// what was counted.
pub(super) fn flags(workspace: &Path, target: &Path, trained: Trained) -> Result<OsString> {
    let trainer = Trainer {
        workspace,
        target,
        folder: target.join("trained"),
    };
    let key = trainer.key()?;
    let kept = match trained {
        Trained::Before => trainer.kept(key)?,
        Trained::Again => None,
    };
    let profile = kept.map_or_else(|| trainer.train(key), Ok)?;
    encoded_flags(&format!("-Cprofile-use={}", profile.display()))
}

struct Trainer<'a> {
    workspace: &'a Path,
    /// What Cargo builds.
    target: &'a Path,
    /// Profiles, and the programs that count.
    folder: PathBuf,
}

impl Trainer<'_> {
    /// Of all that names in a profile depend on.
    fn key(&self) -> Result<u64> {
        let mut hasher = DefaultHasher::new();
        shell::run(shell::command("rustc").arg("-vV"))?.hash(&mut hasher);
        for file in ["Cargo.toml", "Cargo.lock"] {
            fs_err::read(self.workspace.join(file))?.hash(&mut hasher);
        }
        Ok(hasher.finish())
    }

    fn kept(&self, key: u64) -> Result<Option<PathBuf>> {
        let begins = format!("{key:016x}-");
        for profile in self.profiles()? {
            let name = profile.file_name().unwrap_or_default();
            if name.to_string_lossy().starts_with(&begins) {
                return Ok(Some(profile));
            }
        }
        Ok(None)
    }

    fn profiles(&self) -> Result<Vec<PathBuf>> {
        if !self.folder.exists() {
            return Ok(Vec::new());
        }
        let mut profiles = Vec::new();
        for entry in fs_err::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "profdata") {
                profiles.push(path);
            }
        }
        Ok(profiles)
    }

    fn train(&self, key: u64) -> Result<PathBuf> {
        let counts = self.folder.join("counts");
        if counts.exists() {
            fs_err::remove_dir_all(&counts)?;
        }
        fs_err::create_dir_all(&counts)?;
        self.load(&self.build_counting()?, &counts)?;
        let merged = self.folder.join("merged");
        merge(&counts, &merged)?;
        // Cargo builds again what is told another profile, not what is told a changed one.
        let mut hasher = DefaultHasher::new();
        fs_err::read(&merged)?.hash(&mut hasher);
        let name = format!("{key:016x}-{:016x}.profdata", hasher.finish());
        for earlier in self.profiles()? {
            fs_err::remove_file(earlier)?;
        }
        let profile = self.folder.join(name);
        fs_err::rename(&merged, &profile)?;
        fs_err::remove_dir_all(&counts)?;
        Ok(profile)
    }

    /// The server that counts. It is built in a folder of its own: Cargo would else build all that
    /// ships again.
    fn build_counting(&self) -> Result<PathBuf> {
        let mut cargo = cargo(self.workspace);
        to_build(&mut cargo, Profile::Dist, &[SERVER])
            .arg("--target-dir")
            .arg(&self.folder)
            .env(FLAGS, encoded_flags("-Cprofile-generate")?)
            // What runs while it is built, macros and build scripts, counts as well.
            .env(COUNTED_BY, "/dev/null");
        let mut step = ProgressStep::start("A server that counts how often its code runs");
        shell::run_watched(&mut cargo, |line| step.detail(line.trim()))?;
        step.done("");
        Ok(self.folder.join(Profile::Dist.name()).join(SERVER))
    }

    fn load(&self, server: &Path, counts: &Path) -> Result<()> {
        let mut step = ProgressStep::start("Loading it");
        let release = self.target.join(Profile::Release.name());
        let results = self.folder.join("results");
        for load in LOADS {
            step.note(load);
            let mut bench = Command::new(release.join("dengine-e2e"));
            bench
                .args(["bench", "--system", "dengine"])
                .args(load.split(' '))
                .arg("--dengine")
                .arg(server)
                .arg("--output")
                .arg(&results)
                .env(COUNTED_BY, counts.join("%p.profraw"));
            shell::run(&mut bench)?;
        }
        fs_err::remove_dir_all(results)?;
        step.done("");
        Ok(())
    }
}

/// Adds up what was counted.
fn merge(counts: &Path, merged: &Path) -> Result<()> {
    let mut refusals = Vec::new();
    for program in profdata_programs()? {
        let mut merge = Command::new(&program);
        merge.args(["merge", "--output"]).arg(merged).arg(counts);
        match shell::run(&mut merge) {
            Ok(_) => return Ok(()),
            Err(error) => refusals.push(format!("{error:#}")),
        }
    }
    ensure!(
        !refusals.is_empty(),
        "there is no llvm-profdata: `make setup-dist` installs it, and so does `rustup component \
         add llvm-tools`"
    );
    anyhow::bail!(
        "no llvm-profdata here understands what was counted: `rustup component add llvm-tools` \
         installs the compiler's own\n{}",
        refusals.join("\n")
    )
}

/// That of the compiler first, which needs no version to match.
fn profdata_programs() -> Result<Vec<PathBuf>> {
    let libraries = shell::run(shell::command("rustc").args(["--print", "target-libdir"]))?;
    let tools = Path::new(libraries.trim())
        .parent()
        .context("the compiler's libraries lie in a folder")?;
    let own = Some(tools.join("bin/llvm-profdata")).filter(|it| it.is_file());
    let versions = LLVM_VERSIONS.rev();
    let of_versions = versions.filter_map(|it| shell::find(&format!("llvm-profdata-{it}")));
    Ok(own.into_iter().chain(of_versions).collect())
}

/// Flags of the compiler after those that the caller's environment has, in the form in which they
/// may have spaces.
fn encoded_flags(more: &str) -> Result<OsString> {
    let text = |name| match std::env::var(name) {
        Ok(text) => Ok(Some(text)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(error).context(name),
    };
    let (encoded, plain) = (text(FLAGS)?, text("RUSTFLAGS")?);
    Ok(joined_flags(encoded.as_deref(), plain.as_deref(), more).into())
}

/// Cargo reads the plain ones only where there are no encoded ones.
fn joined_flags(encoded: Option<&str>, plain: Option<&str>, more: &str) -> String {
    const SEPARATOR: &str = "\x1f";
    let given = match encoded {
        Some(encoded) => encoded.split(SEPARATOR).collect(),
        None => plain.map_or_else(Vec::new, |it| it.split_whitespace().collect()),
    };
    let given = given.into_iter().filter(|flag| !flag.is_empty());
    given.chain([more]).collect::<Vec<_>>().join(SEPARATOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_kept_for_builds_of_the_same_versions() {
        let folder = tempfile::tempdir().unwrap();
        let trainer = Trainer {
            workspace: folder.path(),
            target: folder.path(),
            folder: folder.path().join("trained"),
        };
        assert_eq!(trainer.kept(1).unwrap(), None);
        fs_err::create_dir(&trainer.folder).unwrap();
        let profile = trainer.folder.join(format!("{:016x}-ab.profdata", 1));
        fs_err::write(&profile, "").unwrap();
        fs_err::write(trainer.folder.join("merged"), "").unwrap();
        assert_eq!(trainer.kept(1).unwrap(), Some(profile));
        assert_eq!(trainer.kept(2).unwrap(), None);
    }

    #[test]
    fn flags_that_are_given_stay() {
        let more = "-Cprofile-use=/a b";
        assert_eq!(joined_flags(None, None, more), more);
        assert_eq!(
            joined_flags(None, Some(" -Cx  -Cy "), more),
            format!("-Cx\x1f-Cy\x1f{more}")
        );
        assert_eq!(
            joined_flags(Some("-Cx\x1f-C y"), Some("-Cz"), more),
            format!("-Cx\x1f-C y\x1f{more}")
        );
        assert_eq!(joined_flags(Some(""), Some("-Cz"), more), more);
    }
}
