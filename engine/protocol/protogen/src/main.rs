//! Writes the Rust code of the protocol and its descriptors:
//! `protogen engine/protocol/src/generated`.
//!
//! What it writes is committed, so that whoever builds a client needs neither protoc nor the time
//! to compile a generator. The files are read by `protox`: protoc's versions differ in what they
//! make.

use std::env;
use std::path::Path;

use anyhow::{Context as _, Result};
use protox::Compiler;

const PROTOS: [&str; 4] = [
    "dengine/v1/kv.proto",
    "dengine/v1/watch.proto",
    "dengine/v1/admin.proto",
    "dengine/peer/v1/peer.proto",
];

fn main() -> Result<()> {
    let directory = env::args_os().nth(1).context("usage: protogen DIRECTORY")?;
    generate(Path::new(&directory))
}

fn generate(directory: &Path) -> Result<()> {
    fs_err::create_dir_all(directory)?;
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::Codec")
        .out_dir(directory)
        .compile_fds(compiler(true)?.file_descriptor_set())?;
    // Server reflection has no use for comments.
    let descriptors = compiler(false)?.encode_file_descriptor_set();
    Ok(fs_err::write(
        directory.join("descriptors.bin"),
        descriptors,
    )?)
}

/// Has read all files, with the comments that become documentation or without.
fn compiler(comments: bool) -> Result<Compiler> {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    let mut compiler = Compiler::new([protos])?;
    compiler
        .include_imports(true)
        .include_source_info(comments)
        .open_files(PROTOS)?;
    Ok(compiler)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_code_is_what_the_protos_say() {
        let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/generated");
        let again = tempfile::tempdir().unwrap();
        generate(again.path()).unwrap();
        for file in ["dengine.v1.rs", "dengine.peer.v1.rs", "descriptors.bin"] {
            let read = |directory: &Path| fs_err::read(directory.join(file)).unwrap();
            assert!(
                read(&committed) == read(again.path()),
                "{file} is not what the .proto files say: make protos"
            );
        }
    }
}
