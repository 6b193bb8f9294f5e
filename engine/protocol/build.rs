//! Generates the gRPC code and the descriptor set that server reflection serves.

use std::{env, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::Codec")
        .file_descriptor_set_path(out.join("dengine_descriptor.bin"))
        .compile_protos(
            &[
                "proto/dengine/v1/kv.proto",
                "proto/dengine/v1/watch.proto",
                "proto/dengine/v1/admin.proto",
                "proto/dengine/peer/v1/peer.proto",
            ],
            &["proto"],
        )?;
    Ok(())
}
