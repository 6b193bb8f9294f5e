//! A member in 512 MiB, attackers with a core of their own, and beside them honest clients who must
//! not notice.
//!
//! `make hostile` runs this as root, for it makes cgroups; `make test` only checks that every RPC
//! and every port has an attacker. Each attacker in turn meets a cluster of its own, whose honest
//! load was measured without it just before, beside a neighbour who keeps a processor as busy and
//! asks for nothing; then all of them at once. No honest call may fail, nor take longer than ten
//! times as long as before, or 500 ms; no member may end, lose the lead or want more memory than it
//! has. What came of it is a table, and the test fails if any promise was broken.
//!
//! - [`attackers`]: who they are, one file for each kind. [`link`], [`frames`], [`tally`]: what
//!   they use.
//! - [`cgroup`], [`member`]: who is attacked. [`honest`]: who must not notice. [`verdict`]: what
//!   was promised.
//! - [`trial`]: one attack, and [`precedence`], which threads wait for no processor
//!   meanwhile. [`report`]: the table.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
#![expect(
    clippy::print_stderr,
    reason = "a run of minutes says what it is doing, and where it left what"
)]

mod attackers;
mod cgroup;
mod coverage;
mod frames;
mod honest;
mod link;
mod member;
mod precedence;
mod report;
mod settings;
mod tally;
mod trial;
mod verdict;

use attackers::Attacker;
use report::Report;
use settings::Settings;
use trial::Trial;

/// Named as in [`attackers::ALL`]'s: the attack by all of them together.
const TOGETHER: &str = "all-together";

/// Skipped by `make test`: see the Makefile.
#[test]
fn under_attack_the_honest_notice_nothing() {
    const NAME: &str = "under_attack_the_honest_notice_nothing";
    if let Some(order) = trial::Order::given() {
        return order.carry_out();
    }
    let settings = Settings::read();
    let attacks: Vec<(&str, Vec<&Attacker>)> = settings.attacks();
    let mut report = Report::begin(&settings);
    for (name, attackers) in attacks {
        eprintln!("hostile: {name}");
        let row = Trial::new(&settings, NAME, name, &attackers).run();
        report.add(row);
    }
    report.finish();
}
