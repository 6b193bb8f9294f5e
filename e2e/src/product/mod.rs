//! DEngine's own images: builds the programs and packs each with the Dockerfile beside its source.

mod trained;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use dengine_local_kubernetes::images::{Archive, Image};
use dengine_local_kubernetes::progress::ProgressStep;
use dengine_local_kubernetes::shell;

const SERVER: &str = "dengine";
const LOAD_GENERATOR: &str = "dengine-bench";
/// Each program with the folder that holds its Dockerfile.
const PROGRAMS: [(&str, &str); 3] = [
    (SERVER, "engine/server"),
    ("dengine-operator", "operator"),
    (LOAD_GENERATOR, "bench-jobs"),
];
/// Those whose speed is measured: the only ones of ours that ship with [`Profile::Dist`].
const OPTIMIZED: [&str; 2] = [SERVER, LOAD_GENERATOR];

/// The checkout that this binary was built from.
///
/// # Errors
/// When it has moved since.
pub fn workspace() -> Result<PathBuf> {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = crate_folder
        .parent()
        .context("the crate lies in a workspace")?;
    fs_err::metadata(workspace.join("Cargo.toml"))
        .context("the checkout has moved: build dengine-e2e again")?;
    Ok(workspace.to_owned())
}

/// Set to a folder that `make images` wrote, its archives are used and nothing is built.
const PREBUILT: &str = "E2E_IMAGES";

/// Cargo's profile of what is [`OPTIMIZED`]. All else has that of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// As tests have it.
    Release,
    /// As it ships: optimized across crates and by a profile, which takes minutes more.
    Dist,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dist => "dist",
        }
    }

    /// Where images go, in the checkout: those for tests take no place of those that ship.
    fn images_folder(self) -> &'static str {
        match self {
            Self::Release => "target/test-images",
            Self::Dist => "target/images",
        }
    }
}

/// Builds what changed since the last time; the archives of what ships lie in the checkout's
/// `target/images`.
///
/// # Errors
/// When a build fails.
pub fn ensure(optimized: Profile) -> Result<Vec<Archive>> {
    if let Some(folder) = std::env::var_os(PREBUILT) {
        let names = PROGRAMS.map(|(program, _)| program);
        return names
            .into_iter()
            .map(|name| Archive::find(Path::new(&folder), name))
            .collect();
    }
    let Built {
        workspace, target, ..
    } = Built::here()?;
    build(cargo(&workspace), Profile::Release, &[])?;
    if optimized == Profile::Dist {
        optimize(&OPTIMIZED, Trained::Before)?;
    }
    let mut step = ProgressStep::start("Images");
    let folder = workspace.join(optimized.images_folder());
    let mut archives = Vec::new();
    for (program, source) in PROGRAMS {
        step.note(program);
        let profile = if OPTIMIZED.contains(&program) {
            optimized
        } else {
            Profile::Release
        };
        let image = Image {
            name: program.to_owned(),
            program: target.join(profile.name()).join(program),
            dockerfile: fs_err::read_to_string(workspace.join(source).join("Dockerfile"))?,
        };
        archives.push(image.ensure(&folder)?);
    }
    step.done(folder.display());
    Ok(archives)
}

/// The release program of this name, built by [`ensure`].
///
/// # Errors
/// When the build's folder is not known.
pub fn program(name: &str) -> Result<PathBuf> {
    Ok(Built::here()?.target.join("release").join(name))
}

/// Builds these programs as what ships, with the profile of [`trained`].
///
/// # Errors
/// When a build fails, or the load that makes the profile does.
pub fn optimize(programs: &[&str], trained: Trained) -> Result<()> {
    let built = Built::here()?;
    trained::with_profile(&built, trained, |flags| {
        let mut cargo = cargo(&built.workspace);
        cargo.env(trained::FLAGS, flags);
        build(cargo, Profile::Dist, programs)
    })
}

/// Whether a profile is made although there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trained {
    /// The one that there is will do.
    Before,
    Again,
}

/// Builds these programs, or all without one.
fn build(mut cargo: std::process::Command, profile: Profile, programs: &[&str]) -> Result<()> {
    let title = format!("Programs: cargo build --profile {}", profile.name());
    let mut step = ProgressStep::start(title);
    let cargo = to_build(&mut cargo, profile, programs);
    shell::run_watched(cargo, |line| step.detail(line.trim()))?;
    step.done("");
    Ok(())
}

fn to_build<'c>(
    cargo: &'c mut std::process::Command,
    profile: Profile,
    programs: &[&str],
) -> &'c mut std::process::Command {
    // All of the workspace but the simulator, as the Makefile has it: what a package's dependencies
    // are compiled with depends on which packages are asked for, and the tests ask for these.
    cargo.args(["build", "--locked", "--workspace"]);
    cargo.args(["--exclude", "dengine-simulator"]);
    cargo.args(["--profile", profile.name()]);
    if programs.is_empty() {
        return cargo.arg("--bins");
    }
    cargo.args(programs.iter().flat_map(|program| ["--bin", program]))
}

/// What Cargo says of this checkout.
struct Built {
    workspace: PathBuf,
    target: PathBuf,
    /// Of all packages.
    manifests: Vec<PathBuf>,
}

impl Built {
    fn here() -> Result<Self> {
        let workspace = workspace()?;
        let metadata = shell::run(cargo(&workspace).args([
            "metadata",
            "--format-version=1",
            "--no-deps",
            "--offline",
        ]))?;
        let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
        let target = metadata["target_directory"].as_str().map(PathBuf::from);
        let packages = metadata["packages"].as_array();
        let manifests = packages.into_iter().flatten();
        let manifests = manifests.filter_map(|it| it["manifest_path"].as_str());
        Ok(Self {
            workspace,
            target: target.context("cargo metadata names a target_directory")?,
            manifests: manifests.map(PathBuf::from).collect(),
        })
    }
}

fn cargo(workspace: &Path) -> std::process::Command {
    let mut cargo = match std::env::var_os("CARGO") {
        Some(cargo) => std::process::Command::new(cargo),
        None => shell::command("cargo"),
    };
    cargo.current_dir(workspace);
    // Tests and `cargo run` get the variables of their own package. Build scripts watch some (that
    // of `ring`: CARGO_MANIFEST_DIR), so with them Cargo would compile half of the dependencies
    // again, now and after.
    let of_a_package = ["CARGO_MANIFEST_", "CARGO_PKG_"];
    for (name, _) in std::env::vars_os() {
        let name_bytes = name.as_encoded_bytes();
        if of_a_package
            .iter()
            .any(|prefix| name_bytes.starts_with(prefix.as_bytes()))
        {
            cargo.env_remove(&name);
        }
    }
    cargo
}
