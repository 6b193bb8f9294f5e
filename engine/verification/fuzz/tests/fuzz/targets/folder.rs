//! The small files that say whose a data directory is, and how its member ended.

use dengine_data_dir::marks::PowerMark;
use dengine_data_dir::{FORMAT, Identity, Record, decode_power_mark, encode_power_mark};
use dengine_types::{ClusterId, MemberId};

use super::{both_modes, repaired, round_trip};
use crate::driver::Target;

/// `folder.toml`, its checksum [`repaired`] or not.
pub(crate) const RECORD: Target = Target {
    run: record,
    seeds: records,
    // The parser of TOML keeps a tree of what it reads.
    memory: (1 << 16, 256),
};

/// `power.toml`.
pub(crate) const POWER: Target = Target {
    run: power,
    seeds: || [true, false].map(|clean| mark(clean).into_bytes()).into(),
    memory: (1 << 16, 256),
};

fn record(input: &[u8]) {
    if let Some(file) = repaired(input, repair) {
        round_trip(&file, Record::decode, |it| it.encode().into_bytes());
    }
}

fn power(input: &[u8]) {
    round_trip(input, decode_power_mark, |it| {
        encode_power_mark(it).into_bytes()
    });
}

/// Makes any bytes a record, by the checksum behind them.
fn repair(file: &mut Vec<u8>) {
    const CHECKSUM: &[u8] = b"checksum = \"";
    let end = file
        .windows(CHECKSUM.len())
        .rposition(|bytes| bytes == CHECKSUM);
    file.truncate(end.unwrap_or(file.len()));
    let checksum = format!("{:08x}\"\n", crc32c::crc32c(file));
    file.extend_from_slice(CHECKSUM);
    file.extend_from_slice(checksum.as_bytes());
}

fn records() -> Vec<Vec<u8>> {
    let member = Identity {
        cluster_id: ClusterId(u64::MAX),
        member_id: MemberId(7),
    };
    let record = |identity| Record {
        format: FORMAT,
        folder_id: "0b5e55ed-0000-4000-8000-000000000000".to_owned(),
        identity,
    };
    both_modes([None, Some(member)].map(|identity| record(identity).encode().into_bytes()))
}

fn mark(clean: bool) -> String {
    let boot_id = "5eed5eed-0000-4000-8000-000000000000".to_owned();
    encode_power_mark(&PowerMark {
        boot_id,
        clean,
        lost_writes_accepted: clean,
    })
}
