//! What sources have in each period is made up here, in milliseconds: nothing depends on how fast
//! the machine is.

use std::net::Ipv6Addr;

use super::*;

/// One that nobody has come from.
pub(in super::super) fn an_address() -> IpAddr {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Ipv6Addr::from_bits(u128::from(number)).into()
}

/// Sources that share threads, and what is known of them.
struct Model {
    demands: Demands,
    sources: Vec<Arc<Demand>>,
    /// They always have something left to do.
    always: bool,
}

impl Model {
    fn of(sources: usize, threads: usize) -> Self {
        let demands = Demands::of_threads(threads);
        Self {
            sources: (0..sources).map(|_| demands.of(an_address())).collect(),
            demands,
            always: false,
        }
    }

    fn ledger(&mut self) -> &mut Ledger {
        self.demands.ledger.get_mut().unwrap()
    }

    fn count(&mut self, source: usize, worked: f64, lasted: f64) {
        let [worked, lasted] = [worked, lasted].map(|it| Duration::from_secs_f64(it / 1000.0));
        let spent = Spent {
            worked,
            lasted,
            left_nothing: !self.always,
        };
        let ledger = self.demands.ledger.get_mut().unwrap();
        ledger.count(&self.sources[source], spent);
    }

    fn heavy(&self) -> Vec<bool> {
        self.sources.iter().map(|it| it.is_heavy()).collect()
    }

    /// In one period they had so much of a processor, and their turns lasted so long; who is heavy
    /// in the next.
    fn period<const N: usize>(&mut self, had: [(u32, u32); N]) -> [bool; N] {
        for (source, (worked, lasted)) in had.into_iter().enumerate() {
            self.count(source, worked.into(), lasted.into());
        }
        self.ledger().end(1);
        std::array::from_fn(|it| self.sources[it].is_heavy())
    }

    /// The same in so many periods; who is heavy after the last.
    fn periods<const N: usize>(&mut self, number: usize, had: [u32; N]) -> [bool; N] {
        let all: Vec<_> = (0..number)
            .map(|_| self.period(had.map(|it| (it, it))))
            .collect();
        all[number - 1]
    }
}

/// Whoever asks for little had to wait for a processor behind it.
#[test]
fn who_has_clearly_more_than_others_is_heavy_for_as_long() {
    let mut model = Model::of(2, 1);
    assert_eq!(model.periods(2, [60, 5]), [true, false]);
    assert_eq!(
        model.periods(8, [30, 30]),
        [false; 2],
        "as much as the other"
    );
    assert_eq!(
        model.periods(2, [6, 1]),
        [false; 2],
        "there is enough for both"
    );
    model.periods(4, [60, 10]);
    let lull = model.periods(1, [15, 20]);
    assert_eq!(lull, [true, false], "of one period alone nothing follows");
}

/// One has lists made that keep the processors busy, and another calls more often: that one was
/// heavy, and its calls waited behind the lists.
#[test]
fn who_has_much_done_elsewhere_is_heavy_and_not_who_calls_more() {
    let mut model = Model::of(2, 2);
    let mut periods = |worked, lasted| {
        let all = (0..8).map(|_| {
            let [worked, lasted] = [worked, lasted].map(Duration::from_millis);
            model.sources[0].elsewhere.add(worked, lasted);
            model.period([(5, 20), (35, 150)])
        });
        all.last().unwrap()
    };
    assert_eq!(periods(0, 0), [false, true], "the processors are busy");
    assert_eq!(periods(80, 400), [true, false]);
    // Others keep the processors busy as well, and nicer threads get little of them.
    assert_eq!(periods(15, 400), [true, false]);
}

/// It always had a little left to do, and was taken for who wants what its lists once took; another
/// one, which wanted much, was not heavy beside it.
#[test]
fn what_was_done_elsewhere_is_not_wanted_forever() {
    let mut model = Model::of(3, 2);
    model.always = true;
    for _ in 0..20 {
        let work = [100, 300].map(Duration::from_millis);
        model.sources[0].elsewhere.add(work[0], work[1]);
        model.periods(1, [2, 20, 3]);
    }
    assert_eq!(model.periods(1, [2, 20, 3]), [true, false, false]);
    assert_eq!(model.periods(60, [2, 90, 3]), [false, true, false]);
}

/// It was let go whenever the threads of whoever is heavy got too little of a processor, and had as
/// much as all others again.
#[test]
fn who_is_heavy_and_waits_for_a_processor_stays_heavy() {
    let mut model = Model::of(2, 1);
    assert_eq!(model.period([(80, 80), (10, 30)]), [true, false]);
    let heavy = model.period([(10, 80), (5, 25)]);
    assert_eq!(heavy, [true, false], "it has been waiting");
    // A turn that is longer than a period, in which nobody else was counted.
    assert_eq!(model.period([(5, 125)]), [true]);
    assert_eq!(model.period([(0, 0); 2]), [true, false]);
}

/// While the state was compacted it was let go once a second, and everybody else waited until it
/// was heavy again.
#[test]
fn who_is_heavy_and_gets_little_stays_heavy_and_nobody_else_becomes_it() {
    let mut model = Model::of(2, 1);
    assert_eq!(model.periods(4, [80, 15]), [true, false]);
    for number in 0..20 {
        let heavy = model.period([(8, 95), (30, 40)]);
        assert_eq!(heavy, [true, false], "{number}");
    }
    // Now it asks for as little as it gets.
    assert_eq!(model.periods(8, [30, 35]), [false; 2]);
}

/// Beside a third one who asked for next to nothing it had more than they had on average, and was
/// served as whoever is heavy is: it waited for a quarter of a second.
#[test]
fn who_asks_for_little_is_not_heavy_because_somebody_asks_for_less() {
    let mut model = Model::of(3, 1);
    for _ in 0..20 {
        assert_eq!(model.period([(14, 20), (14, 20), (0, 0)]), [false; 3]);
    }
    // However many of these there are.
    let mut model = Model::of(30, 1);
    let had = std::array::from_fn::<_, 30, _>(|it| if it < 2 { 14 } else { 0 });
    assert_eq!(model.periods(20, had), [false; 30]);
}

#[test]
fn who_is_alone_is_never_heavy() {
    let mut model = Model::of(1, 2);
    for _ in 0..20 {
        assert_eq!(model.period([(190, 190)]), [false]);
    }
}

/// Whoever waits is there only while it waits: in most periods nobody seemed to be, and what had
/// the threads to itself was heavy in one of five.
#[test]
fn who_asks_for_much_stays_heavy_beside_somebody_who_calls_once_a_second() {
    let mut model = Model::of(2, 2);
    model.period([(1, 1), (1, 1)]);
    let heavy = (0..100).filter(|number| {
        model.count(0, 190.0, 190.0);
        if number % 10 == 9 {
            model.count(1, 1.0, 1.0);
        }
        model.ledger().end(1);
        model.sources[0].is_heavy()
    });
    assert_eq!(heavy.count(), 100);
}

#[test]
fn who_has_asked_for_nothing_lately_is_nobody() {
    let mut model = Model::of(2, 2);
    model.periods(5, [190, 2]);
    let heavy = |model: &mut Model| model.period([(190, 190)]) == [true];
    assert!((0..20).all(|_| heavy(&mut model)));
    assert!((0..20).any(|_| !heavy(&mut model)));
    assert!(!heavy(&mut model), "it has the threads to itself");
    assert_eq!(model.ledger().accounts.len(), 1);
}

/// It was another one, and heavy beside the little that was remembered of itself; and who was heavy
/// was it no more once it had connected again.
#[test]
fn who_comes_back_is_who_it_was() {
    let mut model = Model::of(0, 2);
    let address = an_address();
    let come = |model: &mut Model| model.sources = vec![model.demands.of(address)];
    come(&mut model);
    model.periods(1, [2]);
    come(&mut model);
    assert_eq!(model.periods(20, [190]), [false], "it is alone");
    let other = model.demands.of(an_address());
    model.sources.push(other);
    assert_eq!(model.periods(20, [190, 2]), [true, false]);
    come(&mut model);
    assert_eq!(model.heavy(), [true]);
    // It is remembered for as long as it counts among others.
    model.sources.clear();
    model.ledger().end(u32::try_from(2 * ASKED_LATELY).unwrap());
    assert!(model.ledger().accounts.is_empty());
    let met = lock(&model.demands.known).met;
    come(&mut model);
    assert_eq!(lock(&model.demands.known).met, met + 1, "it is another one");
}

/// Each had left when the next one came.
#[test]
fn of_addresses_that_nobody_comes_from_any_more_few_are_known() {
    let model = Model::of(0, 2);
    let stay = [(); 100].map(|()| model.demands.of(an_address()));
    let known = || lock(&model.demands.known).by_address.len();
    for _ in 0..10_000 {
        drop(model.demands.of(an_address()));
        assert!(known() <= 2 * stay.len());
    }
}

/// A read counts once it has worked for a while, and may wait for longer before.
#[test]
fn who_is_served_elsewhere_is_somebody_for_as_long() {
    let mut model = Model::of(2, 2);
    model.periods(1, [5, 5]);
    let read = Arc::clone(&model.sources[1].elsewhere);
    let accounts = |model: &mut Model| {
        model.periods(2 * ASKED_LATELY as usize, [5]);
        model.ledger().accounts.len()
    };
    assert_eq!(accounts(&mut model), 2);
    drop(read);
    assert_eq!(accounts(&mut model), 1);
}

/// In a row, each for so many periods, then nobody for so many: the part of their time in which
/// they are not heavy. In each period somebody asks for little.
fn unnoticed(sources: usize, on: u32, off: u32) -> f64 {
    const TURNS: u32 = 38;
    let mut model = Model::of(sources + 1, 2);
    let mut unnoticed = 0;
    let rounds = 30;
    for source in (1..=sources).cycle().take(sources * rounds) {
        for period in 0..on + off {
            model.count(0, 2.0, 2.0);
            for _ in (0..TURNS).filter(|_| period < on) {
                model.count(source, 5.0, 5.0);
                unnoticed += u32::from(!model.sources[source].is_heavy());
            }
            model.ledger().end(1);
        }
    }
    let turns = on * TURNS * u32::try_from(sources * rounds).unwrap();
    f64::from(unnoticed) / f64::from(turns)
}

/// It became heavy with its first turn of the next period, if somebody was there in that one: who
/// had the threads every third period, or in turns with others, never was.
#[test]
fn whoever_takes_the_threads_is_heavy_soon_whatever_it_did_before() {
    for (sources, on, off) in [
        (1, 10, 0),
        (2, 10, 0),
        (3, 10, 0),
        (1, 1, 2),
        (1, 1, 3),
        (1, 1, 4),
        (1, 1, 9),
        (1, 2, 4),
        (1, 2, 6),
        (1, 3, 9),
        (2, 1, 0),
        (2, 2, 0),
        (3, 1, 0),
        (3, 2, 0),
        (3, 3, 0),
        (4, 1, 0),
        (4, 2, 0),
        (4, 3, 0),
    ] {
        let part = unnoticed(sources, on, off);
        assert!(part < 0.25, "{sources} on for {on} off for {off}: {part}");
    }
}

/// So many that want as much as one another have two processors, but for what others want. Who is
/// heavy after two seconds.
fn beside(equals: usize, others: &[f64]) -> Vec<bool> {
    let mut model = Model::of(equals + others.len(), 2);
    let each = (190.0 - others.iter().sum::<f64>()) / equals as f64;
    for period in 0..20 {
        for source in 0..equals {
            // Never quite as much as one another.
            let had = each * (0.9 + 0.2 * ((source * 7 + period * 3) % 11) as f64 / 10.0);
            model.count(source, had, had);
        }
        for (source, had) in (equals..).zip(others) {
            model.count(source, *had, *had);
        }
        model.ledger().end(1);
    }
    model.heavy()
}

/// From five on none was.
#[test]
fn many_that_want_as_much_as_one_another_are_heavy_beside_somebody_who_wants_less() {
    for equals in [1, 2, 3, 4, 5, 6, 7, 8, 12, 20, 50, 100, 300] {
        let little = 0.2_f64.min(190.0 / equals as f64 / 4.0);
        for others in [vec![little], vec![little; 5], vec![little; 200]] {
            let heavy = beside(equals, &others);
            let all_but_others: Vec<_> = (0..heavy.len()).map(|it| it < equals).collect();
            assert_eq!(heavy, all_but_others, "{equals}");
        }
    }
    // Nor is somebody who wants a good part of what they have.
    for equals in [2, 5, 8] {
        let part = 190.0 / (equals as f64 + 0.5) / 2.0;
        let heavy = beside(equals, &[part, 0.1]);
        assert_eq!(heavy.iter().filter(|it| **it).count(), equals, "{equals}");
        assert!(!heavy[equals], "{equals}");
    }
}

/// What they had of a processor seemed to leave room, though they had both threads all the time.
#[test]
fn threads_that_wait_for_processors_are_full_with_less_work() {
    let greedy = (12, 36);
    let mut model = Model::of(6, 2);
    for _ in 0..20 {
        model.period([greedy, greedy, greedy, greedy, greedy, (1, 3)]);
    }
    assert_eq!(model.heavy(), [true, true, true, true, true, false]);
    // These have not that much, and it is not they who take the processors.
    let modest = (10, 60);
    let mut model = Model::of(4, 2);
    for _ in 0..20 {
        assert_eq!(model.period([modest, modest, modest, (0, 1)]), [false; 4]);
    }
}

#[test]
fn of_those_that_want_as_much_as_one_another_nobody_is_heavy() {
    for equals in [1, 2, 3, 5, 8, 20, 100, 300] {
        assert!(beside(equals, &[]).iter().all(|it| !it), "{equals}");
    }
}

#[test]
fn of_those_that_begin_together_nobody_is_heavy_for_a_period() {
    let mut model = Model::of(2, 2);
    for _ in 0..20 {
        for source in [0, 1].repeat(19) {
            model.count(source, 5.0, 5.0);
            assert_eq!(model.heavy(), [false; 2]);
        }
        model.ledger().end(1);
    }
}

/// It was heavy for 35 seconds.
#[test]
fn after_a_moment_of_much_work_who_asks_for_little_is_soon_heavy_no_more() {
    for times_as_long in [5, 10, 20] {
        let mut model = Model::of(3, 1);
        assert_eq!(model.periods(10, [90, 80, 3]), [true, true, false]);
        let heavy = (0..600).filter(|_| {
            let [heavy, ..] = model.period([(4, 4 * times_as_long), (10, 90), (3, 3)]);
            heavy
        });
        let periods = heavy.count();
        assert!(periods <= 45, "{times_as_long}: {periods}");
    }
}

/// All that were heavy were let go at once, and everybody else waited until they were heavy again.
#[test]
fn who_always_has_something_left_to_do_stays_heavy_for_as_long() {
    let mut model = Model::of(4, 1);
    model.always = true;
    assert!(model.periods(10, [30, 30, 30, 3])[0]);
    for number in 0..1000 {
        let heavy = model.period([(2, 45), (2, 40), (2, 10), (3, 3)]);
        assert_eq!(heavy, [true, true, true, false], "{number}");
    }
}

#[test]
fn what_somebody_wanted_is_forgotten_in_the_end() {
    let mut model = Model::of(2, 1);
    model.periods(10, [80, 5]);
    // Its turns last on and on, for it has no processor; and it asks for little.
    let stays = (0..9_000).take_while(|_| model.period([(0, 80), (5, 5)])[0]);
    assert!((20..50).contains(&stays.count()));
}

/// One period passed, however long nobody had asked for anything.
#[test]
fn periods_in_which_nobody_has_a_turn_are_counted() {
    let mut model = Model::of(2, 1);
    assert_eq!(model.periods(10, [80, 5]), [true, false]);
    model.ledger().end(20);
    assert_eq!(model.heavy(), [false; 2]);
    model.periods(10, [80, 5]);
    model.ledger().end(100);
    assert_eq!(model.heavy(), [false; 2]);
    assert!(model.ledger().accounts.is_empty());
}

#[test]
fn of_those_that_have_left_a_bounded_number_is_remembered() {
    let mut model = Model::of(ACCOUNTS_MAX + 10, 1);
    for source in 0..model.sources.len() {
        model.count(source, 0.0, 0.0);
    }
    model.sources.truncate(5);
    model.ledger().end(1);
    assert_eq!(model.ledger().accounts.len(), 5);
    model.sources.clear();
    model.ledger().end(1);
    assert_eq!(model.ledger().accounts.len(), 5, "they may come back");
}

#[test]
fn nobody_has_less_than_another_while_it_wants_more() {
    let level_of = |demands: &[u32], room| {
        let demands: Vec<_> = demands.iter().map(|it| PERIOD * *it).collect();
        level(&demands, PERIOD * room).map(|it| it.as_millis() / 100)
    };
    assert_eq!(level_of(&[], 1), None);
    assert_eq!(level_of(&[1, 2, 3], 6), None);
    assert_eq!(level_of(&[1, 2, 4], 6), Some(3));
    assert_eq!(level_of(&[1, 5, 8], 7), Some(3));
    assert_eq!(level_of(&[5, 5, 5], 6), Some(2));
    assert_eq!(level_of(&[0, 5], 0), Some(0));
}
