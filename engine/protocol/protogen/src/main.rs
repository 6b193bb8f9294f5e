//! Writes the Rust code of the protocols, and descriptors where they are served: `protogen engine`.
//!
//! What it writes is committed, so that whoever builds a client needs neither protoc nor the time
//! to compile a generator. The files are read by `protox`: protoc's versions differ in what they
//! make.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use protox::Compiler;

/// `.proto` files, and the crate that has the code that is made of them.
struct Protocol {
    /// The crate's folder, below `engine`.
    folder: &'static str,
    protos: &'static [&'static str],
    /// Described by server reflection.
    reflected: bool,
}

const PROTOCOLS: [Protocol; 2] = [
    Protocol {
        folder: "protocol",
        protos: &[
            "dengine/v1/kv.proto",
            "dengine/v1/watch.proto",
            "dengine/v1/admin.proto",
            "dengine/peer/v1/peer.proto",
        ],
        reflected: true,
    },
    // Without reflection, as etcd is.
    Protocol {
        folder: "etcd",
        protos: &[
            "etcdserverpb/kv.proto",
            "etcdserverpb/watch.proto",
            "etcdserverpb/lease.proto",
            "etcdserverpb/cluster.proto",
            "etcdserverpb/maintenance.proto",
            "etcdserverpb/auth.proto",
            "v3lockpb/lock.proto",
            "v3electionpb/election.proto",
        ],
        reflected: false,
    },
];

fn main() -> Result<()> {
    let engine = env::args_os().nth(1).context("usage: protogen ENGINE")?;
    for protocol in &PROTOCOLS {
        protocol.generate(&protocol.generated(Path::new(&engine)))?;
    }
    Ok(())
}

impl Protocol {
    /// Where its code is.
    fn generated(&self, engine: &Path) -> PathBuf {
        engine.join(self.folder).join("src/generated")
    }

    fn generate(&self, directory: &Path) -> Result<()> {
        fs_err::create_dir_all(directory)?;
        tonic_prost_build::configure()
            .bytes(".")
            .codec_path("crate::codec::Codec")
            .out_dir(directory)
            .compile_fds(self.compiler(true)?.file_descriptor_set())?;
        if self.reflected {
            // Server reflection has no use for comments.
            let descriptors = self.compiler(false)?.encode_file_descriptor_set();
            fs_err::write(directory.join("descriptors.bin"), descriptors)?;
        }
        Ok(())
    }

    /// Has read all files, with the comments that become documentation or without.
    fn compiler(&self, comments: bool) -> Result<Compiler> {
        let mut compiler = Compiler::new([engine().join(self.folder).join("proto")])?;
        compiler
            .include_imports(true)
            .include_source_info(comments)
            .open_files(self.protos)?;
        Ok(compiler)
    }
}

fn engine() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsString;

    use super::*;

    fn files(directory: &Path) -> BTreeMap<OsString, Vec<u8>> {
        let entries = fs_err::read_dir(directory).unwrap().map(Result::unwrap);
        entries
            .map(|file| (file.file_name(), fs_err::read(file.path()).unwrap()))
            .collect()
    }

    #[test]
    fn the_committed_code_is_what_the_protos_say() {
        for protocol in &PROTOCOLS {
            let again = tempfile::tempdir().unwrap();
            protocol.generate(again.path()).unwrap();
            let (committed, again) = (files(&protocol.generated(engine())), files(again.path()));
            let names = |files: &BTreeMap<OsString, Vec<u8>>| files.keys().cloned().collect();
            let (had, made): (Vec<_>, Vec<_>) = (names(&committed), names(&again));
            assert_eq!(had, made, "{}: make protos", protocol.folder);
            for (file, bytes) in again {
                assert!(
                    committed[&file] == bytes,
                    "{} is not what the .proto files say: make protos",
                    file.display()
                );
            }
        }
    }
}
