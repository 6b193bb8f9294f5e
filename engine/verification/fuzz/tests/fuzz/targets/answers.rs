//! What a server answers, which may lie: into what a client decides by it.

use std::time::Duration;

use dengine_client::policy::{
    Attempts, Broken, Code, Failure, Next, Operation, Position, RetryPolicy, WatchCursor,
};
use dengine_protocol::v1::{
    CallError, Event, KeyValue, PipelineResponse, PipelinedAnswer, PutResponse, ResponseHeader,
    WatchResponse, pipelined_answer::Answer,
};
use prost::Message as _;

use super::{joined, parts, received, words};
use crate::driver::Target;

/// The first byte says whether it is a frame of answers, or what a watch is told, with lengths before it.
pub(crate) const ANSWERS: Target = Target {
    name: "",
    run,
    seeds,
    // An answer may have two bytes, and takes a hundred once it is decoded.
    memory: (1 << 18, 256),
};

fn run(input: &[u8]) -> String {
    match input.split_first() {
        None => "nothing".to_owned(),
        Some((kind, frame)) if kind % 2 == 0 => calls(frame),
        Some((_, responses)) => watch(responses),
    }
}

/// One call that is answered again and again.
fn calls(frame: &[u8]) -> String {
    let frame: PipelineResponse = match received(frame) {
        Ok(frame) => frame,
        Err(error) => return words(&error.message()),
    };
    let (policy, deadline) = (RetryPolicy::STANDARD, Duration::from_secs(60));
    let mut attempts = Attempts::new(policy, Operation::Once, 0, deadline);
    let mut became = String::new();
    for PipelinedAnswer { id, answer, .. } in frame.answers {
        became = match answer {
            Some(Answer::Error(error)) => {
                let leader = Some(error.leader).filter(|leader| !leader.is_empty());
                let failure = Failure::answered(Code(error.code), leader);
                match attempts.failed(&failure, Duration::from_secs(1), id as u32) {
                    Next::Again { to, .. } => kind(&to),
                    Next::Stop(end) => kind(&end),
                }
            }
            Some(answer) => kind(&answer),
            None => "no answer".to_owned(),
        };
    }
    became
}

/// What it is, without what is in it.
fn kind(said: &impl std::fmt::Debug) -> String {
    let whole = words(said);
    let name = whole.split(|it: char| !it.is_alphanumeric()).next();
    name.unwrap_or_default().to_owned()
}

/// A watch that begins anew whenever it is told what cannot be.
fn watch(responses: &[u8]) -> String {
    let mut cursor = WatchCursor::new(0);
    let mut position = Position::default();
    let (mut taken, mut broken) = (0, String::new());
    for bytes in parts(responses) {
        let before = cursor.next_revision();
        match received::<WatchResponse>(bytes) {
            Err(error) => return words(&error.message()),
            Ok(response) => match take(&mut cursor, &mut position, &response) {
                Ok(()) => taken += 1,
                Err(Broken(why)) => {
                    broken = words(&why);
                    assert_eq!(cursor.resume(), before, "what was refused changes nothing");
                }
            },
        }
        assert!(cursor.next_revision() >= before, "a watch never goes back");
    }
    format!("{taken} {broken}")
}

/// As the client does.
fn take(
    cursor: &mut WatchCursor,
    position: &mut Position,
    response: &WatchResponse,
) -> Result<(), Broken> {
    let header = response.header.unwrap_or_default();
    if response.created {
        return cursor.created(response.resume_revision);
    }
    if response.events.is_empty() {
        cursor.progress(header.revision)?;
    } else {
        let revision = |event: &Event| event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        let revisions = response.events.iter().map(revision);
        let repeated = cursor.events(revisions, header.revision, response.fragment)?;
        assert!(repeated <= response.events.len());
    }
    position.saw(header.cluster_id, header.revision);
    Ok(())
}

fn seeds() -> Vec<Vec<u8>> {
    let header = |revision| {
        Some(ResponseHeader {
            cluster_id: 7,
            revision,
            ..ResponseHeader::default()
        })
    };
    let put = PutResponse {
        header: header(5),
        prev_kv: None,
    };
    let error = CallError {
        code: Code::UNAVAILABLE.0,
        message: "elsewhere".to_owned(),
        leader: "leader:4100".to_owned(),
        low_on_space: false,
    };
    let answers = (1..).zip([Answer::Put(put), Answer::Error(error)]);
    let answers = answers.map(|(id, answer)| PipelinedAnswer {
        id,
        answer: Some(answer),
        ..PipelinedAnswer::default()
    });
    let frame = PipelineResponse {
        answers: answers.collect(),
        ..PipelineResponse::default()
    };
    vec![
        [&[0], &frame.encode_to_vec()[..]].concat(),
        told_from(5),
        // Nearly at the end of the numbers.
        told_from(u64::MAX - 3),
    ]
}

/// What a watch is told from revision `first` on.
fn told_from(first: u64) -> Vec<u8> {
    let header = |revision| {
        Some(ResponseHeader {
            revision,
            ..ResponseHeader::default()
        })
    };
    let created = WatchResponse {
        header: header(first - 1),
        created: true,
        resume_revision: first,
        ..WatchResponse::default()
    };
    let events = |revisions: &[u64], fragment| {
        let event = |revision: &u64| Event {
            kv: Some(KeyValue {
                mod_revision: *revision,
                ..KeyValue::default()
            }),
            ..Event::default()
        };
        WatchResponse {
            header: header(revisions[revisions.len() - 1]),
            events: revisions.iter().map(event).collect(),
            fragment,
            ..WatchResponse::default()
        }
    };
    let progress = WatchResponse {
        header: header(first + 2),
        ..WatchResponse::default()
    };
    let responses = [
        created,
        events(&[first, first + 1, first + 1], true),
        events(&[first + 1], false),
        progress,
    ];
    let responses = joined(responses.map(|it| it.encode_to_vec()));
    [&[1], &responses[..]].concat()
}
