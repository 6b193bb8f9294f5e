//! [Profile-guided optimization][pgo] of what ships: an instrumented server counts how often its
//! code runs while it is loaded as people load it, and the server is built again by what was
//! counted. The load generator gains by what both are made of.
//!
//! A call is a little of each of hundreds of functions. By the profile what calls run lies
//! together, apart from what hardly ever runs, and is inlined where it is called often.
//!
//! The names in a profile depend on the compiler, on the versions of all crates and on how they are
//! built, so there is one for all of these. It serves later builds of a changed source too: a
//! function that differs from the one that was counted is compiled as without a profile.
//!
//! Cargo takes flags of the compiler from one place only, and here that is the environment, with
//! those that the caller has there. What `rustflags` of its configuration files say does not count.
//!
//! [pgo]: https://doc.rust-lang.org/rustc/profile-guided-optimization.html

use std::ffi::OsString;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use dengine_bench::disk;
use dengine_local_kubernetes::progress::ProgressStep;
use dengine_local_kubernetes::shell;

use super::{Built, Profile, SERVER, Trained, cargo, to_build};
use crate::bench;

/// Under which code is counted, as `dengine-e2e bench` takes them: the loads of d-engine's report
/// by frames and by single calls, what clients of etcd do, and what is rarer.
const LOADS: [&str; 4] = [
    "--profile quick",
    "--profile quick --wire unary",
    "--workload etcd/single-write,etcd/write,etcd/linearizable-read,etcd/serializable-read,\
     etcd/compare-and-put --total 4000 --wire etcd",
    "--workload extra/put-64k,extra/put-seen,extra/watch-1000,etcd/range-of-100 --total 300",
];
/// How often each load is tried: on a busy machine a request may fail, or the leader change, which
/// makes it no measurement and no less of a load.
const TRIES: u32 = 3;
/// Versions of LLVM whose `llvm-profdata` may understand what rustc's programs count. The oldest
/// that does writes what most compilers read.
const LLVM_VERSIONS: std::ops::RangeInclusive<u32> = 19..=40;
/// Where instrumented programs write what they counted when they end. It takes the place of what
/// they were built with.
const COUNTED_BY: &str = "LLVM_PROFILE_FILE";
/// Where Cargo finds flags of the compiler.
pub(super) const FLAGS: &str = "CARGO_ENCODED_RUSTFLAGS";

/// Runs `build` with flags of the compiler by which it uses the profile, which is made if there is
/// none. Of two processes one waits for the other.
///
/// # Errors
/// When a program cannot be built or does not take the load, or no `llvm-profdata` understands what
/// was counted.
pub(super) fn with_profile(
    built: &Built,
    trained: Trained,
    build: impl FnOnce(OsString) -> Result<()>,
) -> Result<()> {
    let trainer = Trainer {
        built,
        folder: built.target.join("trained"),
    };
    fs_err::create_dir_all(&trainer.folder)?;
    let lock = File::create(trainer.folder.join("lock"))?;
    lock.lock()
        .context("waiting for another build's training")?;
    let key = trainer.key()?;
    let kept = match trained {
        Trained::Before => trainer.kept(key)?,
        Trained::Again => None,
    };
    let profile = kept.map_or_else(|| trainer.train(key), Ok)?;
    build(encoded_flags(&using(&profile))?)
}

fn using(profile: &Path) -> String {
    format!("-Cprofile-use={}", profile.display())
}

struct Trainer<'a> {
    built: &'a Built,
    /// Profiles, and the programs that count.
    folder: PathBuf,
}

impl Trainer<'_> {
    /// Of what names in a profile depend on.
    fn key(&self) -> Result<u64> {
        let mut hasher = DefaultHasher::new();
        shell::run(shell::command("rustc").arg("-vV"))?.hash(&mut hasher);
        for file in ["Cargo.toml", "Cargo.lock"] {
            fs_err::read(self.built.workspace.join(file))?.hash(&mut hasher);
        }
        for manifest in &self.built.manifests {
            fs_err::read(manifest)?.hash(&mut hasher);
        }
        Ok(hasher.finish())
    }

    fn kept(&self, key: u64) -> Result<Option<PathBuf>> {
        let begins = format!("{key:016x}-");
        for entry in fs_err::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(&begins) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    fn train(&self, key: u64) -> Result<PathBuf> {
        disk::must_be_real(&self.folder)
            .context("what ships is loaded beside what Cargo builds, CARGO_TARGET_DIR")?;
        let counts = self.folder.join("counts");
        if counts.exists() {
            fs_err::remove_dir_all(&counts)?;
        }
        fs_err::create_dir(&counts)?;
        self.load(&self.build_counting()?, &counts)?;
        let merged = self.folder.join("merged");
        merge(&counts, &merged)?;
        fs_err::remove_dir_all(&counts)?;
        // Cargo builds again what is told another profile, not what is told a changed one.
        let mut hasher = DefaultHasher::new();
        fs_err::read(&merged)?.hash(&mut hasher);
        let name = format!("{key:016x}-{:016x}.profdata", hasher.finish());
        if let Some(earlier) = self.kept(key)? {
            fs_err::remove_file(earlier)?;
        }
        let profile = self.folder.join(name);
        fs_err::rename(&merged, &profile)?;
        // What was built by another profile would stay beside what is built now: gigabytes.
        let before = self.built.target.join(Profile::Dist.name());
        if before.exists() {
            fs_err::remove_dir_all(before)?;
        }
        Ok(profile)
    }

    /// The instrumented server. It is built in a folder of its own: Cargo would else build all that
    /// ships again.
    fn build_counting(&self) -> Result<PathBuf> {
        let mut cargo = cargo(&self.built.workspace);
        to_build(&mut cargo, Profile::Dist, &[SERVER])
            .arg("--target-dir")
            .arg(&self.folder)
            .env(FLAGS, encoded_flags("-Cprofile-generate")?)
            // What runs while it is built, macros and build scripts, counts as well.
            .env(COUNTED_BY, "/dev/null");
        let mut step = ProgressStep::start("Instrumented server");
        shell::run_watched(&mut cargo, |line| step.detail(line.trim()))?;
        step.done("");
        Ok(self.folder.join(Profile::Dist.name()).join(SERVER))
    }

    fn load(&self, server: &Path, counts: &Path) -> Result<()> {
        let mut step = ProgressStep::start("Loading it");
        for (number, load) in LOADS.iter().enumerate() {
            step.note(load);
            let own = counts.join(number.to_string());
            let mut tries = 1;
            while let Err(error) = self.try_load(server, &own, load) {
                ensure!(tries < TRIES, "{error:#}");
                tries += 1;
            }
        }
        fs_err::remove_dir_all(self.results())?;
        step.done("");
        Ok(())
    }

    /// Nothing stays of what was counted in a try before.
    fn try_load(&self, server: &Path, counts: &Path, load: &str) -> Result<()> {
        if counts.exists() {
            fs_err::remove_dir_all(counts)?;
        }
        fs_err::create_dir(counts)?;
        shell::run(&mut self.bench(server, counts, load))?;
        must_be_whole(counts)
    }

    fn bench(&self, server: &Path, counts: &Path, load: &str) -> Command {
        let release = self.built.target.join(Profile::Release.name());
        let mut bench = bench::held(&release.join("dengine-e2e"));
        bench
            .args(["bench", "--system", "dengine"])
            .args(load.split(' '))
            .arg("--dengine")
            .arg(server)
            .arg("--output")
            .arg(self.results())
            .env(COUNTED_BY, counts.join("%p.profraw"));
        bench
    }

    fn results(&self) -> PathBuf {
        self.folder.join("results")
    }
}

/// A program that is killed leaves an empty file, which is no error to who adds up the others.
fn must_be_whole(counts: &Path) -> Result<()> {
    let mut files = 0;
    for entry in fs_err::read_dir(counts)? {
        let entry = entry?;
        files += 1;
        ensure!(
            entry.metadata()?.len() > 0,
            "{} is empty: a member did not end within ten seconds of being asked to; run this \
             again when the machine has less to do",
            entry.path().display()
        );
    }
    ensure!(files > 0, "no member counted what ran");
    Ok(())
}

/// Adds up what was counted, all files below the folder.
fn merge(counts: &Path, merged: &Path) -> Result<()> {
    let mut refusals = Vec::new();
    for program in profdata_programs()? {
        let mut merge = Command::new(&program);
        merge.args(["merge", "--output"]).arg(merged).arg(counts);
        match shell::run(&mut merge).and_then(|_| must_be_read(merged)) {
            Ok(()) => return Ok(()),
            Err(error) => refusals.push(format!("{error:#}")),
        }
    }
    bail!(
        "no llvm-profdata here understands what this compiler's programs count, or the compiler \
         what that writes: `rustup component add llvm-tools` installs the compiler's own, and \
         `make setup-dist` one of LLVM 19\n{}",
        refusals.join("\n")
    )
}

/// The compiler ignores a profile that it cannot read, with a warning.
fn must_be_read(profile: &Path) -> Result<()> {
    let folder = profile.with_extension("tried");
    fs_err::create_dir_all(&folder)?;
    let source = folder.join("lib.rs");
    fs_err::write(&source, "")?;
    let mut warned = String::new();
    let mut rustc = shell::command("rustc");
    rustc.arg(&source).arg("--out-dir").arg(&folder);
    rustc.args(["--crate-type", "lib", &using(profile)]);
    shell::run_watched(&mut rustc, |line| warned.push_str(line))?;
    fs_err::remove_dir_all(folder)?;
    ensure!(
        warned.is_empty(),
        "rustc does not use the profile: {warned}"
    );
    Ok(())
}

/// That of the compiler first, which needs no version to match.
fn profdata_programs() -> Result<Vec<PathBuf>> {
    let libraries = shell::run(shell::command("rustc").args(["--print", "target-libdir"]))?;
    let tools = Path::new(libraries.trim())
        .parent()
        .context("the compiler's libraries lie in a folder")?;
    let own = Some(tools.join("bin/llvm-profdata")).filter(|it| it.is_file());
    let names = LLVM_VERSIONS.map(|version| format!("llvm-profdata-{version}"));
    let names = names.chain(["llvm-profdata".to_owned()]);
    let others = names.filter_map(|name| shell::find(&name));
    Ok(own.into_iter().chain(others).collect())
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
        let built = Built {
            workspace: folder.path().to_owned(),
            target: folder.path().to_owned(),
            manifests: vec![folder.path().join("member.toml")],
        };
        for file in ["Cargo.toml", "Cargo.lock", "member.toml"] {
            fs_err::write(folder.path().join(file), file).unwrap();
        }
        let trainer = Trainer {
            built: &built,
            folder: folder.path().join("trained"),
        };
        fs_err::create_dir(&trainer.folder).unwrap();
        let key = trainer.key().unwrap();
        assert_eq!(trainer.kept(key).unwrap(), None);
        let profile = trainer.folder.join(format!("{key:016x}-ab.profdata"));
        fs_err::write(&profile, "counted").unwrap();
        fs_err::write(trainer.folder.join("merged"), "counted").unwrap();
        assert_eq!(trainer.kept(trainer.key().unwrap()).unwrap(), Some(profile));
        fs_err::write(&built.manifests[0], "other features").unwrap();
        assert_eq!(trainer.kept(trainer.key().unwrap()).unwrap(), None);
    }

    #[test]
    fn what_a_killed_member_counted_is_missed() {
        let folder = tempfile::tempdir().unwrap();
        let refused = must_be_whole(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("no member counted"), "{refused}");
        fs_err::write(folder.path().join("16.profraw"), "counted").unwrap();
        must_be_whole(folder.path()).unwrap();
        fs_err::write(folder.path().join("17.profraw"), "").unwrap();
        let refused = must_be_whole(folder.path()).unwrap_err();
        assert!(
            refused.to_string().contains("17.profraw is empty"),
            "{refused}"
        );
    }

    /// rustc only warns, and what shipped would be as without a profile.
    #[test]
    fn a_profile_that_the_compiler_ignores_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let profile = folder.path().join("merged");
        fs_err::write(&profile, "no profile").unwrap();
        let refused = must_be_read(&profile).unwrap_err().to_string();
        assert!(refused.contains("does not use the profile"), "{refused}");
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
