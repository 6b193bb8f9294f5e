//! How keys and answers look: to people as text, to programs as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::ValueEnum;
use dengine_client::KeyValue;
use serde_json::{Map, Value, json};

use crate::table::{table, unknown};

/// For whom an answer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Text for a person.
    #[default]
    Text,
    /// JSON for a program; an object a line where there may be many.
    Json,
}

/// A key or a value for a person. What would upset a terminal, or could not be seen, is escaped,
/// and so is what escapes: no two keys look alike.
pub(crate) fn text(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => shown.push_str("\\\\"),
                c if c.is_control() || is_unseen(c) => shown.extend(c.escape_default()),
                c => shown.push(c),
            }
        }
        for byte in chunk.invalid() {
            write!(shown, "\\x{byte:02x}").expect("a string takes all");
        }
    }
    shown
}

/// Marks of direction, and what has no width.
fn is_unseen(c: char) -> bool {
    matches!(c,
             '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                 | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A value for a person, who need not see all of a large one.
pub(crate) fn short(bytes: &[u8]) -> String {
    const LONGEST: usize = 60;
    if bytes.len() <= LONGEST {
        return text(bytes);
    }
    // A character that is cut through would have all of it escaped.
    let cut = (0..=LONGEST).rev().find(|&at| is_boundary(bytes, at));
    let shown = text(&bytes[..cut.unwrap_or(LONGEST)]);
    format!("{shown}… ({} bytes)", bytes.len())
}

fn is_boundary(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_none_or(|byte| byte & 0xc0 != 0x80)
}

/// Pairs as a table: with `details` their history too.
pub(crate) fn pairs(pairs: &[KeyValue], details: bool) -> String {
    if !details {
        let row = |kv: &KeyValue| [text(&kv.key), short(&kv.value)];
        return table(["KEY", "VALUE"], pairs.iter().map(row).collect());
    }
    let row = |kv: &KeyValue| {
        [
            text(&kv.key),
            short(&kv.value),
            kv.version.to_string(),
            kv.create_revision.to_string(),
            kv.mod_revision.to_string(),
            kv.ttl.map_or_else(unknown, seconds),
        ]
    };
    let header = ["KEY", "VALUE", "VERSION", "CREATED", "MODIFIED", "TTL"];
    table(header, pairs.iter().map(row).collect())
}

fn seconds(ttl: Duration) -> String {
    humantime::format_duration(ttl).to_string()
}

/// A pair as JSON. A key or value that is not text stands in Base64 under a name of its own.
pub(crate) fn pair(kv: &KeyValue) -> Value {
    let mut pair = key_only(kv);
    put_bytes(&mut pair, "value", &kv.value);
    Value::Object(pair)
}

/// The same without the value, which was not asked for.
pub(crate) fn key_only(kv: &KeyValue) -> Map<String, Value> {
    let mut pair = Map::new();
    put_bytes(&mut pair, "key", &kv.key);
    pair.insert("version".to_owned(), json!(kv.version));
    pair.insert("createRevision".to_owned(), json!(kv.create_revision));
    pair.insert("modRevision".to_owned(), json!(kv.mod_revision));
    if let Some(ttl) = kv.ttl {
        pair.insert("ttlSeconds".to_owned(), json!(ttl.as_secs_f64()));
    }
    pair
}

/// A key or value as JSON: `NAME` if it is text, else `NAMEBase64`.
pub(crate) fn put_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), json!(text)),
        Err(_) => object.insert(format!("{name}Base64"), json!(STANDARD.encode(bytes))),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(key: &'static [u8], value: &'static [u8]) -> KeyValue {
        KeyValue {
            key: key.into(),
            value: value.into(),
            create_revision: 3,
            mod_revision: 5,
            version: 2,
            ttl: Some(Duration::from_secs(90)),
        }
    }

    #[test]
    fn what_is_no_text_is_escaped_for_people_and_encoded_for_programs() {
        assert_eq!(text("schön".as_bytes()), "schön");
        assert_eq!(text(b"a\nb\x1b[1m"), "a\\nb\\u{1b}[1m");
        assert_eq!(text(b"a\\nb"), "a\\\\nb");
        assert_eq!(text("\u{202e}é\nü".as_bytes()), "\\u{202e}é\\nü");
        assert_eq!(text(b"a\xff"), "a\\xff");
        let shown = pair(&kv(b"k", b"\xff"));
        assert_eq!(shown["key"], "k");
        assert_eq!(shown["valueBase64"], "/w==");
        assert!(shown.get("value").is_none());
    }

    #[test]
    fn a_large_value_is_cut_between_characters() {
        assert_eq!(short("é".repeat(30).as_bytes()), "é".repeat(30));
        let shown = short(format!("a{}", "é".repeat(40)).as_bytes());
        assert_eq!(shown, format!("a{}… (81 bytes)", "é".repeat(29)));
    }

    #[test]
    fn details_are_the_history_of_each_key() {
        let all = [kv(b"color", b"blue")];
        assert_eq!(pairs(&all, false), " KEY    VALUE\n color  blue");
        let detailed = pairs(&all, true);
        for part in ["VERSION", "1m 30s", " 3 ", " 5 "] {
            assert!(detailed.contains(part), "{part}: {detailed}");
        }
    }
}
