//! Responses of a server that may lie: what a client decides by them.

use std::time::Duration;

use dengine_client::policy::{
    Attempts, Broken, Code, Failure, Operation, Position, RetryPolicy, WatchCursor,
};
use dengine_protocol::v1::pipelined_answer::Answer;
use dengine_protocol::v1::{
    CallError, Event, KeyValue, PipelineResponse, PipelinedAnswer, PutResponse, ResponseHeader,
    WatchResponse,
};
use prost::Message as _;

use super::{joined, parts, received};
use crate::driver::Target;

/// The first byte says whether it is a frame of answers, or responses to a watch, with lengths
/// before them.
pub(crate) const ANSWERS: Target = Target {
    run,
    seeds,
    // An answer may have two bytes, and takes a hundred once it is decoded.
    memory: (1 << 18, 256),
};

fn run(input: &[u8]) {
    match input.split_first() {
        Some((kind, frame)) if kind % 2 == 0 => calls(frame),
        Some((_, responses)) => watch(responses),
        None => {}
    }
}

/// One call that is answered again and again.
fn calls(frame: &[u8]) {
    let Ok(PipelineResponse { answers, .. }) = received(frame) else {
        return;
    };
    let (policy, deadline) = (RetryPolicy::STANDARD, Duration::from_secs(60));
    let mut attempts = Attempts::new(policy, Operation::Once, 0, deadline);
    for PipelinedAnswer { id, answer, .. } in answers {
        if let Some(Answer::Error(error)) = answer {
            let leader = Some(error.leader).filter(|leader| !leader.is_empty());
            let failure = Failure::answered(Code(error.code), leader);
            drop(attempts.failed(&failure, Duration::from_secs(1), id as u32));
        }
    }
}

/// A watch that resumes whenever a response is refused.
fn watch(responses: &[u8]) {
    let mut cursor = WatchCursor::new(0);
    let mut position = Position::default();
    for bytes in parts(responses) {
        let before = cursor.next_revision();
        let Ok(response) = received::<WatchResponse>(bytes) else {
            return;
        };
        if take(&mut cursor, &mut position, &response).is_err() {
            assert_eq!(cursor.resume(), before, "what was refused changes nothing");
        }
        assert!(cursor.next_revision() >= before, "a watch never goes back");
    }
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
        watched_from(5),
        // Nearly at the end of the numbers.
        watched_from(u64::MAX - 3),
    ]
}

/// Responses to a watch from revision `first` on.
fn watched_from(first: u64) -> Vec<u8> {
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
