//! The small files that say whose a data folder is, and how its member ended.

use dengine_data_dir::marks::PowerMark;
use dengine_data_dir::{FORMAT, Identity, Record, decode_power_mark, encode_power_mark};
use dengine_types::{ClusterId, MemberId};

use super::words;
use crate::driver::Target;

/// The first byte says whether the checksum is mended, the rest is `folder.toml`.
pub(crate) const RECORD: Target = Target {
    name: "",
    run: record,
    seeds: records,
    // The parser of TOML keeps a tree of what it reads.
    memory: (1 << 16, 256),
};

/// `power.toml`.
pub(crate) const POWER: Target = Target {
    name: "",
    run: power,
    seeds: || [true, false].map(|clean| mark(clean).into_bytes()).into(),
    memory: (1 << 16, 256),
};

fn record(input: &[u8]) -> String {
    let Some((mode, file)) = input.split_first() else {
        return "nothing".to_owned();
    };
    let file = match mode % 2 {
        0 => file.to_vec(),
        _ => mend(file),
    };
    match Record::decode(&file) {
        Err(error) => words(&error),
        Ok(record) => {
            let written = record.encode();
            assert_eq!(Record::decode(written.as_bytes()).as_ref(), Ok(&record));
            format!("format {} {}", record.format, record.identity.is_some())
        }
    }
}

fn power(input: &[u8]) -> String {
    match decode_power_mark(input) {
        Err(error) => words(&error),
        Ok(mark) => {
            let written = encode_power_mark(&mark);
            assert_eq!(decode_power_mark(written.as_bytes()).as_ref(), Ok(&mark));
            format!("clean {}", mark.clean)
        }
    }
}

/// A record as it is written, with any bytes before its checksum.
fn mend(file: &[u8]) -> Vec<u8> {
    const SEAL: &[u8] = b"checksum = \"";
    let end = file.windows(SEAL.len()).rposition(|bytes| bytes == SEAL);
    let before = &file[..end.unwrap_or(file.len())];
    let checksum = format!("{:08x}\"\n", crc32c::crc32c(before));
    [before, SEAL, checksum.as_bytes()].concat()
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
    let texts = [None, Some(member)].map(|identity| record(identity).encode());
    let seeds = (0..2_u8).flat_map(|mode| texts.iter().map(move |text| (mode, text)));
    seeds
        .map(|(mode, text)| [&[mode], text.as_bytes()].concat())
        .collect()
}

fn mark(clean: bool) -> String {
    let boot_id = "5eed5eed-0000-4000-8000-000000000000".to_owned();
    encode_power_mark(&PowerMark {
        boot_id,
        clean,
        lost_writes_accepted: clean,
    })
}
