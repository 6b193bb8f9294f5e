//! Answers on their way out: which of them are in the next frame, and how large it may be.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use dengine_protocol::FRAME_BYTES_MAX;
use dengine_protocol::v1::{PipelineResponse, PipelinedAnswer};
use prost::Message;

use super::flight::Flight;
use crate::node::answers::{AnswerBudget, Held};

/// What a frame may hold at any time. When clients that do not read hold what there is for answers,
/// the others get smaller frames, and go on.
const FRAME_BYTES_MIN: usize = 16 * 1024;
/// By how much a frame grows.
const FRAME_STEP_BYTES: usize = 64 * 1024;

/// The frame that is being filled, and what follows it.
pub(super) struct Outbound {
    budget: AnswerBudget,
    /// To whom they go.
    whose: IpAddr,
    frame: PipelineResponse,
    frame_bytes: usize,
    /// What the frame may hold, as far as there is memory for it.
    room_bytes: usize,
    /// Answers that did not fit.
    next: VecDeque<PipelinedAnswer>,
    /// The memory of the frame that is being filled.
    held: Vec<Held>,
    flight: Arc<Flight>,
}

impl Outbound {
    pub(super) fn new(budget: &AnswerBudget, whose: IpAddr) -> Self {
        Self {
            budget: budget.clone(),
            whose,
            frame: PipelineResponse::default(),
            frame_bytes: 0,
            room_bytes: FRAME_BYTES_MIN,
            next: VecDeque::new(),
            held: Vec::new(),
            flight: Arc::default(),
        }
    }

    /// An answer for the next frame, or for one after it.
    pub(super) fn answer(&mut self, answer: PipelinedAnswer) {
        if !self.next.is_empty() || !self.put(&answer) {
            self.next.push_back(answer);
            return;
        }
        self.frame.answers.push(answer);
    }

    /// Whether the frame takes one more answer, which then counts. One that is larger than any
    /// frame is alone in its.
    fn put(&mut self, answer: &PipelinedAnswer) -> bool {
        let bytes = answer.encoded_len();
        let all = self.frame_bytes + bytes;
        while all > self.room_bytes && self.grow() {}
        let fits = all <= self.room_bytes || self.frame.answers.is_empty();
        if fits {
            self.frame_bytes = all;
        }
        fits
    }

    fn grow(&mut self) -> bool {
        if self.room_bytes >= FRAME_BYTES_MAX {
            return false;
        }
        let held = self.budget.hold(self.whose, FRAME_STEP_BYTES);
        let grown = held.is_some();
        if grown {
            self.room_bytes = (self.room_bytes + FRAME_STEP_BYTES).min(FRAME_BYTES_MAX);
        }
        self.held.extend(held);
        grown
    }

    /// Whether nothing more is to be gathered for the frame.
    pub(super) fn is_full(&mut self) -> bool {
        !self.next.is_empty() || self.frame_bytes >= self.room_bytes && !self.grow()
    }

    /// Keeps what counts an answer's memory until it is sent.
    pub(super) fn hold(&mut self, held: Option<Held>) {
        self.held.extend(held);
    }

    /// Tells with the next frame who leads.
    pub(super) fn tell_leader(&mut self, address: &str) {
        address.clone_into(&mut self.frame.leader);
    }

    /// Asks with the next frame that further calls go elsewhere.
    pub(super) fn tell_of_stop(&mut self) {
        self.frame.closing = true;
    }

    /// How many there are, for the next frame and for those after it.
    pub(super) fn answers(&self) -> usize {
        self.frame.answers.len() + self.next.len()
    }

    /// Whether there is a frame to send.
    pub(super) fn has_something(&self) -> bool {
        !self.frame.answers.is_empty() || self.frame.closing
    }

    /// The frame, which is then being sent.
    pub(super) fn take_frame(&mut self) -> PipelineResponse {
        let frame = std::mem::take(&mut self.frame);
        self.flight.hold(std::mem::take(&mut self.held));
        self.frame_bytes = 0;
        self.room_bytes = FRAME_BYTES_MIN;
        while let Some(answer) = self.next.pop_front() {
            if !self.put(&answer) {
                self.next.push_front(answer);
                break;
            }
            self.frame.answers.push(answer);
        }
        frame
    }

    /// The frames on their way.
    pub(super) fn flight(&self) -> &Arc<Flight> {
        &self.flight
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use dengine_protocol::v1::pipelined_answer::Answer;
    use dengine_protocol::v1::{GetResponse, KeyValue};

    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    fn answer(id: u64, bytes: usize) -> PipelinedAnswer {
        let kv = KeyValue {
            value: vec![0; bytes].into(),
            ..KeyValue::default()
        };
        PipelinedAnswer {
            id,
            answer: Some(Answer::Get(GetResponse {
                header: None,
                kv: Some(kv),
            })),
            visited: 0,
            others_waited: false,
        }
    }

    /// All frames until nothing is left: the ids of each.
    fn frames(outbound: &mut Outbound) -> Vec<Vec<u64>> {
        let mut frames = Vec::new();
        while outbound.has_something() {
            let frame = outbound.take_frame();
            assert!(frame.answers.len() == 1 || frame.encoded_len() <= FRAME_BYTES_MAX + 4096);
            frames.push(frame.answers.iter().map(|it| it.id).collect());
        }
        frames
    }

    /// Two hundred swaps that fail on one key of a megabyte were one frame of two hundred
    /// megabytes.
    #[test]
    fn what_does_not_fit_waits_for_the_next_frame() {
        let mut outbound = Outbound::new(&AnswerBudget::new(64 << 20, 0), CLIENT);
        for id in 0..200 {
            outbound.answer(answer(id, 1 << 20));
        }
        let frames = frames(&mut outbound);
        assert_eq!(frames.concat(), (0..200).collect::<Vec<_>>());
        assert!(frames.iter().all(|frame| frame.len() == 1));
    }

    #[test]
    fn small_answers_share_a_frame_as_far_as_it_goes() {
        let mut outbound = Outbound::new(&AnswerBudget::new(64 << 20, 0), CLIENT);
        for id in 0..4_000 {
            outbound.answer(answer(id, 1_000));
        }
        let frames = frames(&mut outbound);
        assert_eq!(frames.concat().len(), 4_000);
        assert_eq!(frames.len(), 4);
    }

    #[test]
    fn without_memory_frames_are_small_and_still_leave() {
        let budget = AnswerBudget::new(64 << 10, 64 << 10);
        let all = budget.hold(CLIENT, 64 << 10);
        let mut outbound = Outbound::new(&budget, CLIENT);
        for id in 0..100 {
            outbound.answer(answer(id, 1_000));
        }
        let small = frames(&mut outbound);
        assert_eq!(small.concat().len(), 100);
        assert!(
            small.iter().all(|it| it.len() <= FRAME_BYTES_MIN / 1_000),
            "{small:?}"
        );
        drop(all);
        assert!(budget.hold(CLIENT, 64 << 10).is_some());
    }
}
