//! Which sources are *heavy*: they want clearly more of the threads than others, who would wait
//! behind them.
//!
//! [Turns](super::turn) share out only what the system gives these threads of its processors, and
//! where they are busy, that is late: with each step of a call, milliseconds late. So a source that
//! wants clearly more than others is served by threads of lower priority (nice) while that lasts:
//! they use idle processors, and light clients, the log and the state machine do not wait for them.
//!
//! What counts is the time of processors in about the last half a second, the *demand*. A turn
//! lasts longer where its thread waits for a processor, as the nicer ones do most: by how long
//! turns last, whoever asks for little would be heavy now and then, and stay so. Where processors
//! are busy with other things, compactions for one, the nicer threads get little of them, and who
//! is heavy has had no more than others. It wants more all the same: what it had before, as far as
//! its turns last that long. Let go for that, it held everybody up until it was heavy again, once a
//! second.
//!
//! How much is too much is found as in max-min fairness (Bertsekas and Gallager, Data Networks,
//! 6.5.2): if all together had to make do with three quarters of what they want, whoever wants less
//! than the fair [`level`] would have all of it, and the others that level. These others are heavy,
//! if somebody is there who wants clearly less. By the average, of five who want the same beside
//! one who wants little nobody was heavy.
//!
//! Who leaves and comes back while it is remembered is the same source: as another one, it would be
//! heavy beside what is remembered of itself, and whoever is heavy would only have to connect again
//! to be it no more.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

/// How often it is found out who is heavy.
pub(super) const PERIOD: Duration = Duration::from_millis(100);
/// Of what was had before, so much counts with the next period.
const REMEMBERED: (u32, u32) = (3, 4);
/// For so many periods after its last turn a source is somebody who asks for something. Who calls
/// once a second always is.
const ASKED_LATELY: u64 = 30;
/// Among more than these, whoever has left is nobody any more. Else who comes from new addresses
/// would have as many remembered as it likes.
const ACCOUNTS_MAX: usize = 4096;

/// For so many periods whoever is heavy is believed to want as much as it had, if its turns last
/// that long; and further on while it always has something left to do. Turns last long with the
/// nicer threads whatever is done in them: after a moment of much work a client that asked for
/// little was heavy for half a minute.
const BELIEVED: u64 = 40;
/// Who had something left to do after each turn in so many periods always has. Behind a turn that
/// lasts a period something comes from anybody.
const ALWAYS: u64 = 10;
/// Of all that is wanted so much is had if nobody has more than the fair level.
const ENOUGH: (u32, u32) = (3, 4);
/// Who has had so much more than makes heavy in one period, and twice what it wanted, is heavy
/// before that ends.
const AT_ONCE: (u32, u32) = (4, 3);
/// Who wants less of a period than this does not become heavy where there is room: a few thousand
/// calls a second. Half of it where there is one thread.
const HEAVY_FROM: Duration = Duration::from_millis(30);
/// There is room while turns take less than half of the threads' time. Where threads wait for
/// processors that is less work, by as much as turns last longer, but counts as no less than a
/// third of it: who asks for little is not to be heavy because of what other processes do.
const SLOWEST: f64 = 1.0 / 3.0;

/// What is wanted by all sources that share threads.
pub(super) struct Demands {
    ledger: Mutex<Ledger>,
    /// Apart from the ledger, which a nicer thread may have for long: connections come in here.
    known: Mutex<Known>,
}

/// Those that are here, or that the ledger remembers.
#[derive(Default)]
struct Known {
    by_address: HashMap<IpAddr, Weak<Demand>>,
    /// So many were ever met.
    met: u64,
    /// With so many, those that are gone are forgotten.
    many: usize,
}

/// What one of them wants, as far as its own turns know.
pub(super) struct Demand {
    number: u64,
    heavy: AtomicBool,
    elsewhere: Arc<WorkElsewhere>,
    uncounted: Mutex<Spent>,
}

/// In turns.
#[derive(Clone, Copy, Default)]
pub(super) struct Spent {
    /// Time of a processor.
    pub(super) worked: Duration,
    /// In which the thread waited for a processor too.
    pub(super) lasted: Duration,
    /// After one of them the source had nothing left to do.
    pub(super) left_nothing: bool,
}

/// What threads that serve no clients have done for a source, and is not counted yet. It is wanted
/// like any: of two that call alike, one has long reads made besides. They are nicer threads: for
/// those that serve the source nothing is locked here.
#[derive(Debug, Default)]
pub(crate) struct WorkElsewhere {
    /// Time of a processor, in nanoseconds.
    worked: AtomicU64,
    /// In which the thread waited for a processor too, or for the disk.
    lasted: AtomicU64,
}

/// In which time is counted to find out who is heavy.
struct Ledger {
    period: u64,
    /// When that began.
    since: Instant,
    /// Of those that asked for something lately, by number.
    accounts: BTreeMap<u64, Account>,
    /// Who wants less does not become heavy while there is room.
    heavy_from: Duration,
    /// Of the threads, if they wait for nothing.
    room: Duration,
}

/// What one source had.
struct Account {
    of: Arc<Demand>,
    /// What it had in turns, and what was done for it elsewhere.
    in_turns: Had,
    elsewhere: Had,
    /// In which period it last had nothing left to do.
    idle_in: u64,
    /// In which period it last had a turn, and in which anything was last counted.
    turn_in: u64,
    asked: u64,
    /// Up to the present period.
    demand: Duration,
}

#[derive(Clone, Copy, Default)]
struct Had {
    worked: Average,
    lasted: Average,
    /// The most that it had since it is heavy, and in which period that was. It is not believed to
    /// want it forever.
    most: Duration,
    most_in: u64,
}

/// Whether a source is heavy, and has always something left to do.
#[derive(Clone, Copy)]
struct Standing {
    heavy: bool,
    always: bool,
}

/// Time in the present period, and on average in those before, of which the last counts most.
#[derive(Clone, Copy, Default)]
struct Average {
    present: Duration,
    before: Duration,
}

impl Default for Demands {
    fn default() -> Self {
        Self::of_threads(1)
    }
}

impl Demands {
    pub(super) fn of_threads(threads: usize) -> Self {
        Self {
            ledger: Mutex::new(Ledger::of_threads(threads)),
            known: Mutex::default(),
        }
    }

    /// Of the source with this address.
    pub(super) fn of(&self, address: IpAddr) -> Arc<Demand> {
        lock(&self.known).of(address)
    }

    /// Counts a turn, and finds out who is heavy if a period is over.
    pub(super) fn count(&self, source: &Arc<Demand>, turn: Spent) {
        let mut uncounted = lock(&source.uncounted);
        *uncounted += turn;
        // All sources count here. Whoever has it may be a thread that is nicer and has lost its
        // processor, and need not be waited for: the next turn counts for this one.
        let Some(mut ledger) = try_lock(&self.ledger) else {
            return;
        };
        ledger.go_on();
        ledger.count(source, std::mem::take(&mut *uncounted));
    }
}

impl Known {
    /// Fewer are not looked through.
    const FEW: usize = 64;

    fn of(&mut self, address: IpAddr) -> Arc<Demand> {
        if let Some(known) = self.by_address.get(&address).and_then(Weak::upgrade) {
            return known;
        }
        if self.by_address.len() >= self.many {
            self.by_address.retain(|_, it| it.strong_count() > 0);
            self.many = Self::FEW.max(2 * self.by_address.len());
        }
        let number = self.met;
        self.met += 1;
        let one = Arc::new(Demand {
            number,
            heavy: AtomicBool::default(),
            elsewhere: Arc::default(),
            uncounted: Mutex::default(),
        });
        self.by_address.insert(address, Arc::downgrade(&one));
        one
    }
}

impl Demand {
    pub(super) fn is_heavy(&self) -> bool {
        self.heavy.load(Ordering::Relaxed)
    }

    pub(super) fn work_elsewhere(&self) -> &Arc<WorkElsewhere> {
        &self.elsewhere
    }

    pub(super) fn set_heavy(&self, heavy: bool) {
        self.heavy.store(heavy, Ordering::Relaxed);
    }
}

impl WorkElsewhere {
    /// A thread has worked so long for the source, and its work has lasted so long.
    pub(crate) fn add(&self, worked: Duration, lasted: Duration) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.worked.fetch_add(nanos(worked), Ordering::Relaxed);
        self.lasted.fetch_add(nanos(lasted), Ordering::Relaxed);
    }

    /// What was added since it was taken: worked, and lasted.
    pub(crate) fn take(&self) -> (Duration, Duration) {
        let take = |nanos: &AtomicU64| Duration::from_nanos(nanos.swap(0, Ordering::Relaxed));
        (take(&self.worked), take(&self.lasted))
    }
}

impl AddAssign for Spent {
    fn add_assign(&mut self, more: Self) {
        self.worked += more.worked;
        self.lasted += more.lasted;
        self.left_nothing |= more.left_nothing;
    }
}

impl Ledger {
    fn of_threads(threads: usize) -> Self {
        let threads = u32::try_from(threads).unwrap_or(u32::MAX).max(1);
        let heavy_from = HEAVY_FROM / if threads > 1 { 1 } else { 2 };
        Self {
            // No source has been counted in it.
            period: 1,
            since: Instant::now(),
            accounts: BTreeMap::new(),
            heavy_from,
            room: PERIOD.saturating_mul(threads) / 2,
        }
    }

    /// Ends the periods that are over.
    fn go_on(&mut self) {
        let over = self.since.elapsed().as_nanos() / PERIOD.as_nanos();
        if over > 0 {
            let over = u32::try_from(over).unwrap_or(u32::MAX);
            self.since += PERIOD.saturating_mul(over);
            self.end(over);
        }
    }

    fn count(&mut self, source: &Arc<Demand>, spent: Spent) {
        let account = self
            .accounts
            .entry(source.number)
            .or_insert_with(|| Account::of(source, self.period));
        (account.turn_in, account.asked) = (self.period, self.period);
        account.in_turns.add(spent.worked, spent.lasted);
        if spent.left_nothing {
            account.idle_in = self.period;
        }
        if self.is_suddenly_heavy(source.number) {
            let account = self.accounts.get_mut(&source.number);
            account.expect("it was counted").become_heavy(self.period);
        }
    }

    /// By the end of the period others have waited for so long, and who comes every now and then
    /// has gone.
    fn is_suddenly_heavy(&self, number: u64) -> bool {
        let account = &self.accounts[&number];
        let had = account.in_turns.worked.present;
        let is_much = had > part(self.heavy_from, AT_ONCE).max(2 * account.demand);
        is_much && !account.of.is_heavy() && had > self.clearly_more()
    }

    /// Than somebody has who asks for least.
    fn clearly_more(&self) -> Duration {
        let demands = self
            .accounts
            .values()
            .map(|it| it.demand.max(it.in_turns.worked.present));
        clearly_more(demands.min().unwrap_or_default())
    }

    /// Ends the present period, and as many as this in all: in the others nobody had a turn.
    fn end(&mut self, periods: u32) {
        for account in self.accounts.values_mut() {
            account.count_elsewhere(self.period);
        }
        self.period += u64::from(periods);
        let all_that_left = self.accounts.len() <= ACCOUNTS_MAX;
        let period = self.period;
        self.accounts.retain(|_, account| {
            let is_known = period - account.asked <= ASKED_LATELY || account.is_served_elsewhere();
            let stays = is_known && (all_that_left || Arc::strong_count(&account.of) > 1);
            if !stays {
                account.of.set_heavy(false);
            }
            stays
        });
        for account in self.accounts.values_mut() {
            account.go_on(periods, period);
        }
        self.judge();
    }

    /// By how fast turns were of late.
    fn room(&self) -> Duration {
        let accounts = self.accounts.values();
        let turns = accounts.map(|it| it.in_turns);
        let worked: Duration = turns.clone().map(|it| it.worked.before).sum();
        let lasted: Duration = turns.map(|it| it.lasted.before).sum();
        let speed = worked.as_secs_f64() / lasted.max(worked).as_secs_f64();
        // Not a number if nobody had a turn.
        self.room.mul_f64(speed.max(SLOWEST))
    }

    fn judge(&mut self) {
        let mut demands: Vec<_> = self.accounts.values().map(|it| it.demand).collect();
        demands.sort_unstable();
        let all: Duration = demands.iter().sum();
        let fair = level(&demands, part(all, ENOUGH)).unwrap_or_default();
        // Of many each has less than that, and all together all there is.
        let floor = |room| {
            let level = level(&demands, room);
            level.map_or(self.heavy_from, |it| it.min(self.heavy_from))
        };
        let room = self.room();
        let floors = [floor(room), floor(room / 2) / 2];
        let least = demands.first().copied().unwrap_or_default();
        for account in self.accounts.values() {
            let more_than = match account.of.is_heavy() {
                true => [part(fair, (3, 4)), floors[1], part(least, (5, 4))],
                false => [fair, floors[0], clearly_more(least)],
            };
            let wants_more = more_than.iter().all(|it| account.demand > *it);
            account.of.set_heavy(wants_more);
        }
    }
}

impl Account {
    fn of(source: &Arc<Demand>, period: u64) -> Self {
        Self {
            of: Arc::clone(source),
            in_turns: Had::default(),
            elsewhere: Had::default(),
            idle_in: period,
            turn_in: period,
            asked: period,
            demand: Duration::ZERO,
        }
    }

    /// Counts in this period what was done elsewhere.
    fn count_elsewhere(&mut self, period: u64) {
        let (worked, lasted) = self.of.elsewhere.take();
        if worked > Duration::ZERO {
            self.asked = period;
            self.elsewhere.add(worked, lasted);
        }
    }

    /// Whether something is being done for it elsewhere.
    fn is_served_elsewhere(&self) -> bool {
        Arc::strong_count(&self.of.elsewhere) > 1
    }

    fn become_heavy(&mut self, period: u64) {
        self.of.set_heavy(true);
        let turns = &mut self.in_turns;
        (turns.most, turns.most_in) = (turns.worked.present, period);
    }

    /// Begins this period, so many after the last one.
    fn go_on(&mut self, periods: u32, period: u64) {
        let was_here = period - self.turn_in <= ALWAYS / 2;
        let source = Standing {
            heavy: self.of.is_heavy(),
            always: was_here && period - self.idle_in > ALWAYS,
        };
        // Of what others do for it no turn says whether more is left.
        let elsewhere = Standing {
            always: false,
            ..source
        };
        let in_turns = self.in_turns.go_on(periods, period, source);
        self.demand = in_turns + self.elsewhere.go_on(periods, period, elsewhere);
    }
}

impl Had {
    fn add(&mut self, worked: Duration, lasted: Duration) {
        self.worked.present += worked;
        self.lasted.present += lasted;
    }

    /// Begins this period, so many after the last one; what is wanted in it.
    fn go_on(&mut self, periods: u32, period: u64, source: Standing) -> Duration {
        let had = self.worked.go_on(periods);
        let lasted = self.lasted.go_on(periods);
        let is_believed = period - self.most_in <= BELIEVED || source.always;
        if !source.heavy || !is_believed || had >= self.most {
            (self.most, self.most_in) = (had, period);
        }
        // Beside others that are heavy it waits for a thread, too: its turns are few, and last for
        // as little as that.
        let wants = match source.always {
            true => self.most,
            false => lasted.min(self.most),
        };
        wants.max(had)
    }
}

impl Average {
    /// Begins the next period, or so many periods later.
    fn go_on(&mut self, periods: u32) -> Duration {
        let (of, parts) = REMEMBERED;
        // After so many nothing is left of it.
        for _ in 0..periods.min(64) {
            let present = std::mem::take(&mut self.present);
            self.before = (self.before * of + present * (parts - of)) / parts;
        }
        self.before
    }
}

/// What those have who want more than that, if all together have `room`, and nobody less than
/// another while it wants more. `None` if there is enough for all. The least comes first.
fn level(demands: &[Duration], room: Duration) -> Option<Duration> {
    let mut left = room;
    for (want, others) in demands.iter().zip((1..=demands.len()).rev()) {
        let each = left / u32::try_from(others).unwrap_or(u32::MAX);
        if *want > each {
            return Some(each);
        }
        left -= *want;
    }
    None
}

/// Than somebody who wants so much.
fn clearly_more(demand: Duration) -> Duration {
    part(demand, (3, 2))
}

fn part(of: Duration, (numerator, denominator): (u32, u32)) -> Duration {
    of * numerator / denominator
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// None if somebody else has it.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::an_address;
