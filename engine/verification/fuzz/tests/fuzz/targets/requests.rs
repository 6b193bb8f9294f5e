//! Requests of clients, alone or in a frame of a stream, up to the response.

use dengine_kv as kv;
use dengine_kv::store::MemoryStore;
use dengine_kv::{Outcome, StateMachine};
use dengine_protocol::checks::frame::{self, Asked, Calls, ReadAlone};
use dengine_protocol::checks::writes::{self, NoAnswer};
use dengine_protocol::checks::{Header, Mutation, RequestLimits, reads, status};
use dengine_protocol::v1::pipelined_call::Call;
use dengine_protocol::v1::{
    self, Consistency, GetRequest, GetResponse, PipelineRequest, PipelineResponse, PipelinedAnswer,
    PipelinedCall, Position, RangeRequest, RangeResponse,
};
use dengine_protocol::{KvCall, for_each_write, kv_calls};
use dengine_types::{ClusterId, EntryKind, MemberId, Term};
use prost::Message;
use tonic::Status;

use super::kv::{self as state, filled};
use super::samples::calls;
use super::{assert_fits, received};
use crate::driver::Target;

/// The first byte says which request it is: its row in `kv_calls!`.
pub(crate) const ONE: Target = Target {
    run: one,
    seeds: || calls().into_iter().map(numbered).collect(),
    // A part of a batch may have two bytes, and takes a hundred once it is decoded.
    memory: (1 << 20, 256),
};

/// A frame of requests.
pub(crate) const FRAME: Target = Target {
    run: many,
    seeds: frames,
    // The same is true of calls, which are also answered.
    memory: (1 << 20, 1024),
};

/// Small, so that inputs reach them.
pub(super) const LIMITS: RequestLimits = RequestLimits {
    max_key_bytes: 256,
    max_value_bytes: 1024,
    max_range_bytes: 4096,
    max_batch_operations: 16,
    max_batch_request_bytes: 4096,
};
/// A message to a client has to fit into response headers.
const MESSAGE_BYTES_MAX: usize = 512;
pub(super) const CLUSTER: ClusterId = ClusterId(7);

fn one(input: &[u8]) {
    if let Some((number, bytes)) = input.split_first() {
        SERVE[usize::from(*number) % SERVE.len()](bytes);
    }
}

/// Numbers the requests by their rows in the table.
macro_rules! number_requests {
    ([] $(
        $kind:ident $variant:ident, $method:ident:
            $request:ident { $($filled_in:ident)? } => $answer:ident;
    )*) => {
        /// What serves the requests of each number.
        const SERVE: &[fn(&[u8])] =
            &[$(|bytes| serve_one(bytes, |it: v1::$request| alone(it.framed()))),*];

        fn numbered(call: Call) -> Vec<u8> {
            enum Number { $($variant),* }
            let (number, bytes) = match call {
                $(Call::$variant(it) => (Number::$variant as u8, it.encode_to_vec()),)*
            };
            [&[number], &bytes[..]].concat()
        }
    };
}

kv_calls!([number_requests]);

/// Answers a request that is no part of a frame.
fn alone(call: Call) -> Result<(), Status> {
    let machine = &mut filled();
    match call {
        Call::Get(it) => get(machine, &it).map(drop),
        Call::Range(it) => range(machine, it).map(drop),
        write => for_each_write!(write, it => written(machine, &it).map(drop),
            otherwise panic!("a read is no write")),
    }
}

/// Decodes a request, and answers it.
fn serve_one<M, T>(bytes: &[u8], serve: impl FnOnce(M) -> Result<T, Status>)
where
    M: Message + Default + 'static,
{
    if let Err(status) = received(bytes).and_then(serve) {
        assert_fits(&status, MESSAGE_BYTES_MAX);
    }
}

/// The result of a write on a leader.
fn written<M: Mutation>(
    machine: &mut StateMachine<MemoryStore>,
    request: &M,
) -> Result<M::Answer, Status> {
    let command = writes::command(request, &LIMITS)?;
    for keys in command.command.returned() {
        let read = machine.reader().range(&kv::RangeQuery::new(keys.clone()));
        read.map_err(|error| status::read_status(&error))?;
    }
    let outcome = apply(machine, std::slice::from_ref(&command)).remove(0);
    answered(&command, writes::answer(request, header(machine), outcome))
}

/// Applies commands as they come back from the log.
fn apply(machine: &mut StateMachine<MemoryStore>, commands: &[kv::Request]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for command in commands {
        let data = command.clone().encode(kv::CommandVersion::CURRENT);
        assert!(
            data.len() <= LIMITS.max_write_bytes(),
            "the log takes whatever the limits let through"
        );
        let again = kv::Request::decode(data.clone()).unwrap().unwrap();
        assert_eq!(
            again.request, *command,
            "a command is what it was encoded from"
        );
        let applied = state::apply(machine, EntryKind::Command, &data);
        outcomes.extend(applied.expect("what was checked applies"));
    }
    outcomes
}

fn answered<T>(command: &kv::Request, answer: Result<T, NoAnswer>) -> Result<T, Status> {
    answer.map_err(|why| {
        // A session answers with the outcome of the first command of that sequence.
        let other = matches!(why, NoAnswer::OfAnotherKind(_));
        assert!(
            command.session.is_some() || !other,
            "{why:?} to {command:?}"
        );
        why.into()
    })
}

fn get(machine: &StateMachine<MemoryStore>, get: &GetRequest) -> Result<GetResponse, Status> {
    LIMITS.check_key(&get.key)?;
    fresh(get.consistency, get.at_least)?;
    let reader = machine.reader();
    let read = reader.gets().get(&get.key, reads::get_revision(get));
    let (revision, found) = read.map_err(|error| status::read_status(&error))?;
    Ok(reads::get_response(header(machine), revision, found))
}

fn range(
    machine: &StateMachine<MemoryStore>,
    range: RangeRequest,
) -> Result<RangeResponse, Status> {
    let (consistency, at_least) = (range.consistency, range.at_least);
    let query = reads::range_query(range, &LIMITS)?;
    fresh(consistency, at_least)?;
    let read = machine.reader().range(&query);
    let result = read.map_err(|error| status::read_status(&error))?;
    Ok(reads::range_response(header(machine), result))
}

fn fresh(consistency: i32, at_least: Option<Position>) -> Result<(), Status> {
    if reads::consistency(consistency)? == Consistency::Session {
        reads::revision_to_reach(CLUSTER, at_least.unwrap_or_default())?;
    }
    Ok(())
}

fn header(machine: &StateMachine<MemoryStore>) -> Header {
    Header {
        cluster_id: CLUSTER,
        member_id: MemberId(1),
        term: Term(1),
        revision: machine.revision(),
        trimmed: false,
    }
}

fn many(input: &[u8]) {
    serve_one(input, |frame: PipelineRequest| {
        let mut called: Vec<_> = frame.calls.iter().map(|it| it.id).collect();
        let response = serve(Calls::sort(frame, &LIMITS)?);
        let mut answered: Vec<_> = response.answers.iter().map(|it| it.id).collect();
        called.sort_unstable();
        answered.sort_unstable();
        assert_eq!(answered, called, "each call has one answer");
        let bytes = response.encode_to_vec();
        assert_eq!(PipelineResponse::decode(&bytes[..]).unwrap(), response);
        Ok(())
    });
}

/// Answers all calls.
fn serve(calls: Calls) -> PipelineResponse {
    let machine = &mut filled();
    let mut answers = calls.refused;
    assert_eq!(calls.writes.len(), calls.commands.len());
    let outcomes = apply(machine, &calls.commands);
    let header = header(machine);
    for (((asked, call), command), outcome) in
        calls.writes.iter().zip(&calls.commands).zip(outcomes)
    {
        let answer = answered(command, frame::answer(call, header, outcome));
        answers.push(match answer {
            Ok(answer) => frame::found(asked.id, answer),
            Err(status) => frame::failed(asked.id, &status),
        });
    }
    for (Asked { id, .. }, call) in calls.writes_alone {
        answers.push(for_each_write!(call, it => write_framed(machine, id, &it),
            otherwise panic!("a read is no write")));
    }
    for (Asked { id, .. }, it) in calls.gets.into_iter().flatten() {
        answers.push(frame::framed::<GetRequest>(id, get(machine, &it)));
    }
    for (Asked { id, .. }, read) in calls.reads_alone {
        answers.push(match read {
            ReadAlone::Get(it) => frame::framed::<GetRequest>(id, get(machine, &it)),
            ReadAlone::Range(it) => frame::framed::<RangeRequest>(id, range(machine, it)),
        });
    }
    PipelineResponse {
        answers,
        ..PipelineResponse::default()
    }
}

fn write_framed<M: Mutation>(
    machine: &mut StateMachine<MemoryStore>,
    id: u64,
    request: &M,
) -> PipelinedAnswer {
    frame::framed::<M>(id, written(machine, request))
}

fn frames() -> Vec<Vec<u8>> {
    let frame = |calls: Vec<Call>| {
        let calls = (1..).zip(calls).map(|(id, call)| PipelinedCall {
            id,
            call: Some(call),
            timeout_ms: 100 * id as u32,
            ..PipelinedCall::default()
        });
        let frame = PipelineRequest {
            calls: calls.collect(),
            cancelled: vec![1, 1 << 40],
        };
        frame.encode_to_vec()
    };
    let mut frames = vec![frame(calls())];
    frames.extend(calls().into_iter().map(|call| frame(vec![call])));
    frames
}
