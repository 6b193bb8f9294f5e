//! Links between members: they lose, delay, reorder, repeat and hold up, and break.

use std::collections::{BTreeMap, BTreeSet};

use dengine_types::MemberId;

use super::plan::Weather;
use super::queue::{MILLI, Nanos, SECOND};
use super::random::Random;

/// From whom to whom.
pub(super) type Link = (MemberId, MemberId);

pub(super) struct Network {
    random: Random,
    weather: Weather,
    /// Links that carry nothing.
    cut: BTreeSet<Link>,
    /// Until when links keep what they are given: what a transport sends again arrives late, and at
    /// once.
    held: BTreeMap<Link, Nanos>,
    /// When the last message of a link arrives: without reordering, none overtakes it.
    newest: BTreeMap<Link, Nanos>,
    /// Counts how often a link's stream broke. What is on the way in an older stream is lost.
    streams: BTreeMap<Link, u64>,
}

/// What becomes of a message.
#[derive(Debug, Default)]
pub(super) struct Fate {
    /// When it arrives; more than once if it is repeated, never if it is lost.
    pub(super) arrivals: Vec<Nanos>,
    /// When it arrives once more, whatever became of its stream.
    pub(super) stray: Option<Nanos>,
    /// Whether the sender hears that it could not be sent.
    pub(super) refused: bool,
}

impl Network {
    pub(super) fn new(random: Random, weather: Weather) -> Self {
        Self {
            random,
            weather,
            cut: BTreeSet::new(),
            held: BTreeMap::new(),
            newest: BTreeMap::new(),
            streams: BTreeMap::new(),
        }
    }

    pub(super) fn send(&mut self, now: Nanos, link: Link) -> Fate {
        let mut fate = Fate::default();
        if self.cut.contains(&link) {
            // A stream that nobody answers looks well for a while.
            fate.refused = self.random.chance(200_000);
            return fate;
        }
        if self.random.chance(self.weather.loss) {
            return fate;
        }
        fate.arrivals.push(self.arrival(now, link));
        if self.random.chance(self.weather.duplicates) {
            fate.arrivals.push(self.arrival(now, link));
        }
        if self.random.chance(self.weather.strays) {
            fate.stray = Some(now + self.random.between(100 * MILLI, 10 * SECOND));
        }
        fate
    }

    fn arrival(&mut self, now: Nanos, link: Link) -> Nanos {
        let arrival = self.leaves(now, link) + self.random.spread(self.weather.latency);
        let newest = self.newest.entry(link).or_default();
        if self.weather.reordering {
            return arrival;
        }
        *newest = arrival.max(*newest + 1);
        *newest
    }

    /// The stream that a link has now.
    pub(super) fn stream(&self, link: Link) -> u64 {
        self.streams.get(&link).copied().unwrap_or(0)
    }

    /// Breaks a link's stream; the next message opens another.
    pub(super) fn reset(&mut self, link: Link) {
        *self.streams.entry(link).or_default() += 1;
    }

    pub(super) fn is_cut(&self, link: Link) -> bool {
        self.cut.contains(&link)
    }

    pub(super) fn cut(&mut self, links: impl IntoIterator<Item = Link>) {
        self.cut.extend(links);
    }

    pub(super) fn mend(&mut self, links: impl IntoIterator<Item = Link>) {
        for link in links {
            self.cut.remove(&link);
        }
    }

    /// When what is given to a link now is on its way.
    pub(super) fn leaves(&self, now: Nanos, link: Link) -> Nanos {
        self.held.get(&link).map_or(now, |held| now.max(*held))
    }

    /// What is sent from now on arrives then or later.
    pub(super) fn hold(&mut self, link: Link, until: Nanos) {
        let held = self.held.entry(link).or_default();
        *held = until.max(*held);
    }

    /// No faults from now on.
    pub(super) fn calm(&mut self) {
        self.cut.clear();
        self.held.clear();
        self.weather = Weather::CALM;
    }
}
