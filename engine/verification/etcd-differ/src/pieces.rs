//! The pieces of a RangeStream. How a range is cut is each side's matter, so they are merged before
//! they are compared; what etcd promises of them is demanded of each side alone.

use crate::pb;

/// The range that pieces make, or the promise that they break.
pub(crate) fn merged(pieces: Vec<pb::RangeStreamResponse>) -> Result<pb::RangeResponse, String> {
    let count = pieces.len();
    let mut range = pb::RangeResponse::default();
    for (place, piece) in pieces.into_iter().enumerate() {
        let mut piece = piece.range_response.unwrap_or_default();
        check(&piece, place + 1 == count, count)
            .map_err(|what| format!("piece {} of {count} {what}", place + 1))?;
        let kvs = std::mem::take(&mut range.kvs);
        piece.kvs.splice(0..0, kvs);
        range = piece;
    }
    if range.header.is_none() {
        return Err(format!("the last of {count} pieces has no header"));
    }
    // Each has keys of its own, behind those of the one before.
    if !range.kvs.is_sorted_by(|a, b| a.key < b.key) {
        return Err(format!("the keys of {count} pieces do not ascend"));
    }
    Ok(range)
}

fn check(piece: &pb::RangeResponse, last: bool, count: usize) -> Result<(), &'static str> {
    if !last && (piece.header.is_some() || piece.more || piece.count != 0) {
        return Err("says what only the last one says");
    }
    if count > 1 && piece.kvs.is_empty() {
        return Err("is empty");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(keys: &[&'static str]) -> pb::RangeResponse {
        let kvs = keys.iter().map(|key| pb::KeyValue {
            key: (*key).into(),
            ..Default::default()
        });
        pb::RangeResponse {
            kvs: kvs.collect(),
            ..Default::default()
        }
    }

    fn last(keys: &[&'static str]) -> pb::RangeResponse {
        pb::RangeResponse {
            header: Some(pb::ResponseHeader::default()),
            more: true,
            count: 9,
            ..piece(keys)
        }
    }

    fn merge(pieces: Vec<pb::RangeResponse>) -> Result<pb::RangeResponse, String> {
        let pieces = pieces.into_iter().map(|piece| pb::RangeStreamResponse {
            range_response: Some(piece),
        });
        merged(pieces.collect())
    }

    #[test]
    fn pieces_are_one_range_however_it_was_cut() {
        let whole = last(&["a", "b", "c"]);
        assert_eq!(merge(vec![whole.clone()]).as_ref(), Ok(&whole));
        let cut = vec![piece(&["a"]), piece(&["b"]), last(&["c"])];
        assert_eq!(merge(cut).as_ref(), Ok(&whole));
        assert_eq!(merge(vec![last(&[])]), Ok(last(&[])));
    }

    #[test]
    fn each_broken_promise_is_named() {
        let counted = pb::RangeResponse {
            count: 2,
            ..piece(&["a"])
        };
        for (pieces, what) in [
            (vec![], "no header"),
            (vec![piece(&["a"])], "no header"),
            (vec![last(&["a"]), last(&["b"])], "piece 1 of 2 says"),
            (vec![counted, last(&["b"])], "piece 1 of 2 says"),
            (vec![piece(&["a"]), last(&[])], "piece 2 of 2 is empty"),
            (vec![piece(&["b"]), last(&["a"])], "do not ascend"),
            (vec![piece(&["a"]), last(&["a"])], "do not ascend"),
        ] {
            let said = merge(pieces).unwrap_err();
            assert!(said.contains(what), "{said}");
        }
    }
}
