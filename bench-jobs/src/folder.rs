//! The folder of a run: every key that it writes begins with the folder's name, so that it meets no
//! key of anybody else and can be taken away afterwards. The name says when the run must be over,
//! so that a later run knows the folder of one that was killed from that of one that still runs.
//! Pure.

use bytes::Bytes;

/// `PREFIX` followed by `EXPIRES-RANDOM/`, in hexadecimal.
const TAIL_BYTES: usize = 14;
/// Two machines' clocks may differ by so much.
const CLOCKS_APART_SECONDS: u64 = 600;

/// The name of a new folder of a run that is over in `lasts_seconds` at the latest.
#[must_use]
pub fn name(prefix: &str, now: u64, lasts_seconds: u64, random: u16) -> Bytes {
    let expires = u32::try_from(now + lasts_seconds).unwrap_or(u32::MAX);
    format!("{prefix}{expires:08x}-{random:04x}/").into()
}

/// The folder that a key below the prefix lies in, if a run made it.
#[must_use]
pub fn of_key<'a>(prefix: &str, key: &'a [u8]) -> Option<&'a [u8]> {
    let name = key.get(..prefix.len() + TAIL_BYTES)?;
    expires(prefix, name).map(|_| name)
}

/// Whether the run of this folder must be over.
#[must_use]
pub fn is_left_over(prefix: &str, folder: &[u8], now: u64) -> bool {
    expires(prefix, folder).is_some_and(|expires| expires + CLOCKS_APART_SECONDS < now)
}

fn expires(prefix: &str, folder: &[u8]) -> Option<u64> {
    let tail = std::str::from_utf8(folder.strip_prefix(prefix.as_bytes())?).ok()?;
    let (expires, random) = tail.strip_suffix('/')?.split_once('-')?;
    let is_hex = |text: &str, len| text.len() == len && text.bytes().all(is_digit);
    let ours = is_hex(expires, 8) && is_hex(random, 4);
    ours.then(|| u64::from_str_radix(expires, 16).ok())?
}

/// As they are written, so that no other name is taken for one of ours.
fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// The least key above all of the folder: its name ends with a slash, and `0` comes after that.
#[must_use]
pub fn end(folder: &[u8]) -> Vec<u8> {
    let mut end = folder.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_left_over_once_its_run_must_have_ended_on_every_clock() {
        let folder = name("dengine-bench/", 1_000_000, 600, 0x2a);
        assert_eq!(folder, "dengine-bench/000f4498-002a/");
        let key = [&folder[..], b"00000001"].concat();
        assert_eq!(of_key("dengine-bench/", &key), Some(&folder[..]));
        assert!(!is_left_over("dengine-bench/", &folder, 1_001_200));
        assert!(is_left_over("dengine-bench/", &folder, 1_001_201));
    }

    #[test]
    fn what_others_named_is_no_folder_of_a_run() {
        for other in [
            "dengine-bench/000f4498-002a",
            "dengine-bench/000f4498-002A/x",
            "dengine-bench/+00f4498-002a/x",
            "dengine-bench/users/of/a/company",
            "another/000f4498-002a/00000001",
            "",
        ] {
            assert_eq!(of_key("dengine-bench/", other.as_bytes()), None, "{other}");
            assert!(!is_left_over("dengine-bench/", other.as_bytes(), u64::MAX));
        }
    }

    #[test]
    fn a_folder_ends_behind_its_last_key() {
        let folder = name("p/", 0, 1, 1);
        let end = end(&folder);
        assert!(end > [&folder[..], b"ffffffff"].concat());
        assert!(end[..] > folder[..]);
    }
}
