//! Commands that a member passes on: as a call for a client of another protocol than ours, with
//! the outcome as sessions keep it, and as a message between members.

use bytes::Bytes;
use dengine_kv::outcome::{decode_kept, encode_whole};
use dengine_kv::{
    BATCH_DEPTH_MAX, Batch, BatchOperation, Command, CommandVersion, CompareTarget, Expected,
    KeyRange, Outcome, Refusal, Request,
};
use tonic::Status;

use crate::checks::header::Header;
use crate::checks::limits::RequestLimits;
use crate::checks::writes::Mutation;
use crate::fields::{Value, batch_elements, for_each_field};
use crate::v1::{ForwardRequest, ForwardResponse, ResponseHeader};

/// Most comparisons and operations of a batch and of those within it together, as many as a client
/// of etcd may send.
const ELEMENTS_MAX: usize = 16 << 10;
/// The longest time to live that a client of etcd may ask for, in milliseconds.
const LEASE_TTL_MS_MAX: u64 = 9_000_000_000_000;

/// A command for the leader, or for this member if it leads.
#[must_use]
pub fn request(command: Command) -> ForwardRequest {
    ForwardRequest {
        command: Request::from(command).encode(CommandVersion::CURRENT),
    }
}

/// What the command came to.
///
/// # Errors
/// A member of another release answered something else.
pub fn outcome(answer: ForwardResponse) -> Result<Outcome, Status> {
    decode_kept(answer.outcome)
        .map_err(|error| Status::internal(format!("the leader's answer does not read: {error}")))
}

impl Mutation for ForwardRequest {
    fn command(&self, limits: &RequestLimits) -> Result<Command, Status> {
        let Request { session, command } = read(&self.command, limits)?;
        // What may be repeated within a session is what clients may ask for, and leases.
        let is_of_clients = command.may_be_stamped()
            || matches!(
                command,
                Command::GrantLease { .. } | Command::RevokeLease { .. }
            );
        match session.is_none() && is_of_clients {
            true => Ok(command),
            false => Err(Status::invalid_argument(
                "a member passes on writes of keys, compactions, and the grant or revocation of a \
                 lease, without a session",
            )),
        }
    }

    fn answer(&self, header: Header, outcome: Outcome) -> Result<ForwardResponse, Outcome> {
        let outcome = match header.trimmed {
            true => outcome.without_pairs(),
            false => outcome,
        };
        match encode_whole(&outcome) {
            Some(bytes) => Ok(ForwardResponse {
                header: header.wire(),
                outcome: bytes.into(),
            }),
            None => Err(outcome),
        }
    }

    fn refused(&self, header: Header, refusal: Refusal) -> Result<ForwardResponse, Refusal> {
        let answer = self.answer(header, Outcome::Refused(refusal));
        answer.map_err(|outcome| match outcome {
            Outcome::Refused(refusal) => refusal,
            other => unreachable!("a refusal was encoded, not {}", other.name()),
        })
    }

    fn leave_out_pairs(answer: &mut ForwardResponse) -> Option<&mut ResponseHeader> {
        let whole = decode_kept(answer.outcome.clone()).ok()?;
        answer.outcome = encode_whole(&whole.without_pairs())?.into();
        answer.header.as_mut()
    }
}

/// Reads a command that another member passes on.
///
/// # Errors
/// It does not read, or is more than these limits have a client ask for.
pub fn read(encoded: &Bytes, limits: &RequestLimits) -> Result<Request, Status> {
    let elements = counted(encoded)?;
    let Request { session, command } = decoded(encoded)?;
    let most = limits.max_batch_bytes(elements);
    if matches!(command, Command::Batch(_)) && encoded.len() > most {
        return Err(Status::invalid_argument(format!(
            "the batch has {} bytes in the log; with {elements} operations and comparisons this \
             member takes at most {most} (--max-batch-request-bytes)",
            encoded.len()
        )));
    }
    check(&command, limits)?;
    Ok(Request { session, command })
}

/// How many comparisons and operations the command has. An empty one is two bytes here, and
/// hundreds once it is decoded.
fn counted(command: &[u8]) -> Result<usize, Status> {
    let behind_version = command.get(1..).unwrap_or_default();
    match command_elements(behind_version) {
        Some(elements) if elements <= ELEMENTS_MAX => Ok(elements),
        Some(_) => Err(Status::invalid_argument(format!(
            "the command has at most {ELEMENTS_MAX} operations and comparisons, in batches that \
             are nested at most {BATCH_DEPTH_MAX} deep"
        ))),
        None => Err(Status::invalid_argument("the command is malformed")),
    }
}

/// How many comparisons, operations and other elements of lists an encoded command of the log has,
/// behind its version, at all levels of its batches together; `None` if it is malformed, and
/// `usize::MAX` if its batches are nested deeper than any may be. `docs/formats.md` has the numbers
/// of the fields.
fn command_elements(command: &[u8]) -> Option<usize> {
    let mut found: usize = 0;
    for_each_field(command, |number, value| {
        let Value::Bytes(value) = value else {
            return Some(());
        };
        let elements = match number {
            5 => batch_elements(value, 5, BATCH_DEPTH_MAX)?,
            // Keys that expire, and leases that are checkpointed.
            11 | 15 => list_elements(value)?,
            _ => 0,
        };
        found = found.saturating_add(elements);
        Some(())
    })?;
    Some(found)
}

/// Those of a command that is nothing but a list.
fn list_elements(list: &[u8]) -> Option<usize> {
    let mut found = 0;
    for_each_field(list, |number, value| {
        found += usize::from(matches!((number, value), (1, Value::Bytes(_))));
        Some(())
    })?;
    Some(found)
}

fn decoded(command: &Bytes) -> Result<Request, Status> {
    let logged = Request::decode(command.clone())
        .map_err(|newer| Status::unavailable(newer.to_string()))?
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    Ok(logged.request)
}

/// That any client could have asked for it.
fn check(command: &Command, limits: &RequestLimits) -> Result<(), Status> {
    match command {
        Command::Put(put) => {
            limits.check_key(&put.key)?;
            limits.check_value(&put.value)
        }
        Command::CompareAndSwap {
            key,
            expected,
            value,
            ..
        } => {
            limits.check_key(key)?;
            if let Expected::Value(expected) = expected {
                limits.check_value(expected)?;
            }
            limits.check_value(value)
        }
        Command::Delete { keys, .. } => check_keys(keys, limits),
        Command::Batch(batch) => {
            check_batch(batch, limits)?;
            match batch.duplicate_key() {
                Some(_) => Err(Status::invalid_argument("the batch changes a key twice")),
                None => Ok(()),
            }
        }
        // Any id may be asked for; the state machine refuses the one that names no lease.
        Command::GrantLease { ttl_ms, .. } if !(1..=LEASE_TTL_MS_MAX).contains(ttl_ms) => {
            Err(Status::invalid_argument(format!(
                "a lease lasts from 1 to {LEASE_TTL_MS_MAX} milliseconds, not {ttl_ms}"
            )))
        }
        _ => Ok(()),
    }
}

/// Itself and those within it, which decoding has bounded in depth.
fn check_batch(batch: &Batch, limits: &RequestLimits) -> Result<(), Status> {
    let lists = [
        batch.compares.len(),
        batch.then.len(),
        batch.otherwise.len(),
    ];
    if lists.iter().any(|it| *it > limits.max_batch_operations) {
        return Err(Status::invalid_argument(format!(
            "a list of the batch has more than {} entries (--max-batch-operations)",
            limits.max_batch_operations
        )));
    }
    for compare in &batch.compares {
        check_keys(&compare.keys, limits)?;
        if let CompareTarget::Value(operand) = &compare.target {
            limits.check_value(operand)?;
        }
    }
    let operations = batch.then.iter().chain(&batch.otherwise);
    for operation in operations {
        match operation {
            BatchOperation::Put(put) => {
                limits.check_key(&put.key)?;
                limits.check_value(&put.value)?;
            }
            BatchOperation::Delete { keys, .. } | BatchOperation::Get { keys, .. } => {
                check_keys(keys, limits)?;
            }
            BatchOperation::Range(read) => check_keys(&read.keys, limits)?,
            BatchOperation::Batch(inner) => check_batch(inner, limits)?,
        }
    }
    Ok(())
}

fn check_keys(keys: &KeyRange, limits: &RequestLimits) -> Result<(), Status> {
    match keys {
        KeyRange::One(key) => limits.check_key(key),
        KeyRange::From(start) => limits.check_range_start(start, &Bytes::from_static(b"\0")),
        KeyRange::Between { start, end } => {
            limits.check_range_start(start, end)?;
            limits.check_range_end(end)
        }
    }
}

#[cfg(test)]
mod tests {
    use dengine_kv::{Compare, ExpiredKey, KeyValue, Put, Relation};
    use dengine_types::{LeaseId, Revision};
    use tonic::Code;

    use super::*;
    use crate::checks::limits::TEST_LIMITS;
    use crate::checks::writes;

    fn put(key: &'static str) -> Command {
        Command::Put(Put {
            prev_kv: true,
            ..Put::new(key, "v")
        })
    }

    #[test]
    fn a_command_arrives_as_it_was_and_its_outcome_comes_back() {
        let forwarded = request(put("k"));
        assert_eq!(forwarded.command(&TEST_LIMITS).unwrap(), put("k"));
        let prev = KeyValue {
            key: "k".into(),
            value: "before".into(),
            create_revision: Revision(2),
            mod_revision: Revision(3),
            version: 2,
            ttl_ms: 0,
            lease: LeaseId::NONE,
        };
        let whole = Outcome::Put {
            revision: Revision(4),
            prev: Some(prev),
        };
        let refused = Outcome::Refused(Refusal::Compacted {
            requested: Revision(1),
            compacted: Revision(3),
        });
        for came in [whole.clone(), refused, whole.clone().without_pairs()] {
            let answer = writes::answer(&forwarded, Header::default(), came.clone()).unwrap();
            assert_eq!(outcome(answer).unwrap(), came);
        }
        let mut answer = writes::answer(&forwarded, Header::default(), whole.clone()).unwrap();
        ForwardRequest::leave_out_pairs(&mut answer);
        assert_eq!(outcome(answer).unwrap(), whole.without_pairs());
    }

    /// The leader's clock would have been asked for a time that it does not have.
    #[test]
    fn a_lease_is_passed_on_that_lasts_as_long_as_etcds() {
        let granted = |id, ttl_ms| {
            let lease = LeaseId(id);
            let grant = Command::GrantLease { lease, ttl_ms };
            let command = request(grant.clone()).command(&TEST_LIMITS);
            command.map(|it| assert_eq!(it, grant))
        };
        granted(7, 1).unwrap();
        granted(-7, LEASE_TTL_MS_MAX).unwrap();
        for ttl_ms in [0, LEASE_TTL_MS_MAX + 1, u64::MAX] {
            let refused = granted(7, ttl_ms).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{ttl_ms}");
        }
    }

    /// Whoever reaches a member's port could have made it expire keys, or store keys of any length.
    #[test]
    fn nothing_is_passed_on_that_a_client_may_not_ask_for() {
        let expire = Command::ExpireKeys {
            keys: vec![ExpiredKey {
                key: "k".into(),
                mod_revision: Revision(1),
            }],
        };
        let twice = Command::Batch(Batch {
            then: vec![BatchOperation::put("k", "v"); 2],
            ..Batch::default()
        });
        let long = KeyRange::One(vec![b'k'; TEST_LIMITS.max_key_bytes + 1].into());
        let delete = Command::Delete {
            keys: long,
            prev_kv: false,
        };
        for command in [expire, put(""), twice, delete] {
            let refused = request(command.clone()).command(&TEST_LIMITS).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{command:?}");
        }
        let noise = ForwardRequest {
            command: vec![CommandVersion::CURRENT.number(), 0xff].into(),
        };
        assert!(noise.command(&TEST_LIMITS).is_err());
    }

    /// The field of a message, with its length.
    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2];
        prost::encode_length_delimiter(value.len(), &mut field).unwrap();
        [&field[..], value].concat()
    }

    fn written(record: &[u8]) -> ForwardRequest {
        ForwardRequest {
            command: [&[CommandVersion::CURRENT.number()], record]
                .concat()
                .into(),
        }
    }

    fn refused(forwarded: &ForwardRequest, expect: &str) {
        let refused = forwarded.command(&TEST_LIMITS).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(expect), "{expect}: {refused}");
    }

    /// Three megabytes of nothing took five hundred.
    #[test]
    fn elements_are_counted_before_they_are_held() {
        let empty = |count: usize| [0x12, 0].repeat(count);
        // These are decoded, and found to lack what they are to do.
        refused(&written(&field(5, &empty(ELEMENTS_MAX))), "lacks");
        for list in [5, 11, 15] {
            let number = if list == 5 { 0x12 } else { 0x0a };
            let many = [number, 0].repeat(ELEMENTS_MAX + 1);
            refused(&written(&field(list, &many)), "at most 16384");
        }
        let half = field(5, &empty(ELEMENTS_MAX / 2 + 1));
        refused(&written(&half.repeat(2)), "at most 16384");
        let inner = field(3, &field(5, &empty(ELEMENTS_MAX / 2)));
        refused(&written(&field(5, &inner.repeat(2))), "at most 16384");
        let nested = |depth: usize| {
            let inner = (1..depth).fold(Vec::new(), |batch, _| field(2, &field(5, &batch)));
            written(&field(5, &inner))
        };
        assert!(nested(BATCH_DEPTH_MAX).command(&TEST_LIMITS).is_ok());
        refused(&nested(BATCH_DEPTH_MAX + 1), "nested at most");
        refused(&written(&[0x2a, 5, 0]), "malformed");
    }

    /// No other door would have let it in.
    #[test]
    fn a_batch_is_no_larger_than_its_client_could_have_sent() {
        let batch = |values: usize| {
            let then = (0..values).map(|at| {
                BatchOperation::put(format!("key-{at}"), vec![7; TEST_LIMITS.max_value_bytes])
            });
            let inner = Batch {
                then: then.collect(),
                ..Batch::default()
            };
            request(Command::Batch(Batch {
                otherwise: vec![BatchOperation::Batch(Box::new(inner))],
                ..Batch::default()
            }))
        };
        let limits = RequestLimits {
            max_batch_request_bytes: 512,
            ..TEST_LIMITS
        };
        assert!(batch(3).command(&limits).is_ok());
        assert!(batch(8).command(&TEST_LIMITS).is_ok());
        let larger = batch(8).command(&limits).unwrap_err();
        assert_eq!(larger.code(), Code::InvalidArgument);
        assert!(larger.message().contains("--max-batch-request-bytes"));
    }

    #[test]
    fn what_is_compared_with_is_a_value() {
        let compared = |bytes: usize| {
            let compare = Compare {
                keys: KeyRange::One("k".into()),
                relation: Relation::Equal,
                target: CompareTarget::Value(vec![7; bytes].into()),
            };
            request(Command::Batch(Batch {
                compares: vec![compare],
                ..Batch::default()
            }))
        };
        let swapped = |bytes: usize| {
            request(Command::CompareAndSwap {
                key: "k".into(),
                expected: Expected::Value(vec![7; bytes].into()),
                value: "v".into(),
                ttl_ms: 0,
            })
        };
        let most = TEST_LIMITS.max_value_bytes;
        for forwarded in [compared(most), swapped(most)] {
            assert!(forwarded.command(&TEST_LIMITS).is_ok());
        }
        refused(&compared(most + 1), "--max-value-bytes");
        refused(&swapped(most + 1), "--max-value-bytes");
    }
}
