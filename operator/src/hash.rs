//! A hash that is stable across versions of the operator and of Rust, for annotations: it compares
//! what would be applied with what was applied.

use serde_json::Value;

/// 64-bit FNV-1a over the JSON text with sorted keys, in hexadecimal.
pub(crate) fn of(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Sorts the keys itself: whether `serde_json` does depends on features that other crates may turn
/// on.
fn write(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            text.push('{');
            for key in keys {
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write(&map[key], text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                write(item, text);
                text.push(',');
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn equal_values_hash_alike_whatever_their_order() {
        assert_eq!(
            super::of(&json!({"a": 1, "b": 2})),
            super::of(&json!({"b": 2, "a": 1}))
        );
        assert_ne!(super::of(&json!({"a": 1})), super::of(&json!({"a": 2})));
    }

    /// A changed hash would restart every member of every cluster when the operator is upgraded.
    #[test]
    fn the_hash_never_changes() {
        assert_eq!(super::of(&json!({"a": [1, "x", null]})), "0856edf6b5e90590");
    }
}
