//! Raft thesis §6.4: a read is confirmed by a round of heartbeats that a majority answers; its
//! index is the leader's commit index when the round began.

use super::cluster::Cluster;
use super::script::run;

#[test]
fn a_member_says_whether_it_could_confirm_a_read() {
    let could = |id: u64, script: &str| {
        let cluster = run(Cluster::default(), script);
        cluster.members[&id].consensus.can_confirm_reads()
    };
    assert!(!could(1, "start 1 2 3"), "nobody leads");
    let elected = "start 1 2 3
                   timeout 1
                   deliver 1->2
                   deliver 2->1";
    assert!(!could(1, elected), "it is a candidate");
    let elected = format!(
        "{elected}
         deliver 1->2
         deliver 2->1"
    );
    assert!(!could(1, &elected), "it has committed nothing in its term");
    let elected = format!("{elected}\n deliver");
    assert!(could(1, &elected) && could(2, &elected));
    // A learner never stands, so that it believes in its leader for longer.
    let learner = "bootstrap 1
                   join 2
                   add-learner 1 2
                   deliver
                   tick 2 10";
    assert!(could(2, learner));
    assert!(!could(2, &format!("{learner}\n tick 2 1")));
}
