//! Container images without a registry and without a base image: an image holds one program and the
//! libraries that `ldd` names. `buildah` builds them from the Dockerfiles of the repository; what
//! did not change is not built again.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use crate::programs::hex;
use crate::shell;

/// The tag of every image that is built here.
const TAG: &str = ":dev";

/// What every Dockerfile of ours looks like where the repository has none: the local cluster's own
/// programs.
fn plain_dockerfile(program: &str, user: &str) -> String {
    format!("FROM scratch\nCOPY rootfs/ /\nUSER {user}\nENTRYPOINT [\"/{program}\"]\n")
}

/// An image to build.
#[derive(Debug)]
pub struct Image {
    /// Its name without registry and tag.
    pub name: String,
    /// The program in it, as `/name`.
    pub program: PathBuf,
    /// The text of its Dockerfile.
    pub dockerfile: String,
}

/// A built image in a file that `ctr images import` and `kind load image-archive` take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// `localhost/NAME:dev`.
    pub tag: String,
    /// The archive.
    pub file: PathBuf,
    /// Changes when the image's content does.
    pub digest: String,
}

impl Archive {
    /// The archive that [`Image::ensure`] left in a folder.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(folder: &Path, name: &str) -> Result<Self> {
        let file = folder.join(format!("{name}.tar"));
        fs_err::metadata(&file)?;
        let digest = fs_err::read_to_string(folder.join(format!("{name}.digest")))?;
        Ok(Self {
            tag: format!("localhost/{name}{TAG}"),
            file,
            digest,
        })
    }

    /// The image's name without registry and tag.
    #[must_use]
    pub fn name(&self) -> &str {
        self.tag
            .trim_start_matches("localhost/")
            .trim_end_matches(TAG)
    }

    /// A tag that changes with the content: a pod that names it never runs an older image that is
    /// already there.
    #[must_use]
    pub fn pinned(&self) -> &str {
        &self.digest[..12]
    }

    /// The image under its pinned tag.
    #[must_use]
    pub fn pinned_tag(&self) -> String {
        format!("localhost/{}:{}", self.name(), self.pinned())
    }
}

impl Image {
    /// An image of a program of the local cluster.
    #[must_use]
    pub fn of_program(program: &Path, user: &str) -> Self {
        let name = program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Self {
            dockerfile: plain_dockerfile(&name, user),
            program: program.to_owned(),
            name,
        }
    }

    /// Builds the archive in `folder`, unless the one there has the same content.
    ///
    /// # Errors
    /// When the program is missing or `buildah` fails.
    pub fn ensure(&self, folder: &Path) -> Result<Archive> {
        fs_err::create_dir_all(folder)?;
        let work = tempfile::Builder::new()
            .prefix(&format!(".{}.", self.name))
            .tempdir_in(folder)?;
        self.assemble(&work.path().join("rootfs"))?;
        let digest = self.digest(work.path())?;
        let archive = Archive {
            tag: format!("localhost/{}{TAG}", self.name),
            file: folder.join(format!("{}.tar", self.name)),
            digest,
        };
        let stamp = folder.join(format!("{}.digest", self.name));
        let built = archive.file.is_file()
            && fs_err::read_to_string(&stamp).is_ok_and(|old| old == archive.digest);
        if !built {
            self.build(work.path(), &archive)
                .with_context(|| format!("building image {}", archive.tag))?;
            fs_err::write(stamp, &archive.digest)?;
        }
        Ok(archive)
    }

    /// The image's files: program, libraries, and who and where it is.
    fn assemble(&self, rootfs: &Path) -> Result<()> {
        fs_err::create_dir_all(rootfs.join("etc"))?;
        let program = rootfs.join(&self.name);
        fs_err::copy(&self.program, &program)?;
        // Line tables are for the checkout's binaries; function names stay for backtraces.
        shell::run(shell::command("strip").arg("--strip-debug").arg(&program))?;
        for library in libraries(&self.program)? {
            let inside = rootfs.join(library.strip_prefix("/").unwrap_or(&library));
            fs_err::create_dir_all(inside.parent().context("a library has a folder")?)?;
            fs_err::copy(&library, &inside)?;
        }
        fs_err::write(
            rootfs.join("etc/passwd"),
            "root:x:0:0::/:\nnonroot:x:65532:65532::/:\n",
        )?;
        fs_err::write(rootfs.join("etc/group"), "root:x:0:\nnonroot:x:65532:\n")?;
        fs_err::write(rootfs.join("etc/nsswitch.conf"), "hosts: files dns\n")?;
        Ok(())
    }

    fn digest(&self, context: &Path) -> Result<String> {
        let mut files = Vec::new();
        collect(&context.join("rootfs"), &mut files)?;
        files.sort();
        let mut hash = Sha256::new();
        hash.update(&self.dockerfile);
        for file in files {
            hash.update(file.strip_prefix(context)?.as_os_str().as_encoded_bytes());
            hash.update(Sha256::digest(fs_err::read(&file)?));
        }
        Ok(hex(&hash.finalize()))
    }

    fn build(&self, context: &Path, archive: &Archive) -> Result<()> {
        fs_err::write(context.join("Dockerfile"), &self.dockerfile)?;
        let policy = context.join("policy.json");
        fs_err::write(
            &policy,
            r#"{"default": [{"type": "insecureAcceptAnything"}]}"#,
        )?;
        let buildah = || {
            let mut command = shell::command("buildah");
            command
                .arg("--root")
                .arg(context.join("storage"))
                .arg("--runroot")
                .arg(context.join("run"));
            command.args(["--storage-driver", "vfs"]);
            command
        };
        let mut bud = buildah();
        bud.args([
            "bud",
            "--isolation",
            "chroot",
            "--timestamp",
            "0",
            "--signature-policy",
        ])
        .arg(&policy);
        bud.args(["--tag", &archive.tag, "--file"])
            .arg(context.join("Dockerfile"))
            .arg(context);
        // The storage below it must not become part of the context.
        fs_err::write(context.join(".dockerignore"), "*\n!rootfs\n")?;
        shell::run(&mut bud)?;
        let unfinished = context.join("image.tar");
        let mut push = buildah();
        push.args(["push", "--signature-policy"])
            .arg(&policy)
            .arg(&archive.tag);
        push.arg(format!(
            "docker-archive:{}:{}",
            unfinished.display(),
            archive.tag
        ));
        shell::run(&mut push)?;
        fs_err::rename(unfinished, &archive.file)?;
        Ok(())
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// The shared libraries of a program, the dynamic loader among them; none for a static one.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = shell::command("ldd")
        .arg(program)
        .output()
        .context("cannot run ldd")?;
    // A static program is an error to ldd, and no libraries to us.
    Ok(parse_ldd(&String::from_utf8_lossy(&output.stdout)))
}

fn parse_ldd(output: &str) -> Vec<PathBuf> {
    output
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_names_libraries_and_the_loader_but_not_the_vdso() {
        let output = "\tlinux-vdso.so.1 (0x00007ffd)\n\
            \tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f01)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f02)\n";
        assert_eq!(
            parse_ldd(output),
            [
                "/lib/x86_64-linux-gnu/libgcc_s.so.1",
                "/lib64/ld-linux-x86-64.so.2"
            ]
            .map(PathBuf::from)
        );
        assert!(parse_ldd("\tnot a dynamic executable\n").is_empty());
    }
}
