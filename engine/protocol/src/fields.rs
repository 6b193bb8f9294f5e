//! Walks the fields of an encoded message, to count what its lists have before they are held.

use prost::decode_length_delimiter;

/// What a field has, as far as it matters here.
pub enum Value<'a> {
    /// A number that takes as many bytes as it needs.
    Number,
    /// A message, bytes, or numbers one after the other.
    Bytes(&'a [u8]),
}

/// Calls `visit` with the number and value of each field, but for numbers of fixed length; `None`
/// if that returned it, or if the message is malformed.
pub fn for_each_field<'a>(
    mut message: &'a [u8],
    mut visit: impl FnMut(usize, Value<'a>) -> Option<()>,
) -> Option<()> {
    while !message.is_empty() {
        let key = varint(&mut message)?;
        let length = match key & 7 {
            0 => {
                varint(&mut message)?;
                visit(key >> 3, Value::Number)?;
                continue;
            }
            1 => 8,
            2 => varint(&mut message)?,
            5 => 4,
            // Groups, which no message has.
            _ => return None,
        };
        let (value, behind) = message.split_at_checked(length)?;
        if key & 7 == 2 {
            visit(key >> 3, Value::Bytes(value))?;
        }
        message = behind;
    }
    Some(())
}

fn varint(bytes: &mut &[u8]) -> Option<usize> {
    decode_length_delimiter(bytes).ok()
}

/// How many comparisons and operations a batch has, and those within it: its comparisons are its
/// field 1, its two lists of operations 2 and 3, and an operation that is a batch has it as its
/// field `nested`. `None` if it is malformed; `usize::MAX` if more than `depth` are within each
/// other, none of which is followed further.
#[must_use]
pub fn batch_elements(batch: &[u8], nested: usize, depth: usize) -> Option<usize> {
    let Some(depth) = depth.checked_sub(1) else {
        return Some(usize::MAX);
    };
    let mut found: usize = 0;
    for_each_field(batch, |list, value| {
        let Value::Bytes(element) = value else {
            return Some(());
        };
        found = found.saturating_add(usize::from((1..=3).contains(&list)));
        if !(2..=3).contains(&list) {
            return Some(());
        }
        for_each_field(element, |number, value| {
            if number == nested
                && let Value::Bytes(inner) = value
            {
                found = found.saturating_add(batch_elements(inner, nested, depth)?);
            }
            Some(())
        })
    })?;
    Some(found)
}
