//! Runs the files of `testdata` and compares what each command prints with what the file says.

use std::path::Path;

use expect_test::expect_file;

use super::script::rerun;

macro_rules! scripts {
    ($($name:ident,)*) => {
        const FILES: &[&str] = &[$(stringify!($name),)*];

        $(#[test]
        fn $name() {
            let file = include_str!(concat!("../testdata/", stringify!($name), ".txt"));
            let expected = expect_file![concat!("../testdata/", stringify!($name), ".txt")];
            expected.assert_eq(&rerun(file));
        })*
    };
}

scripts! {
    bootstrap_4_4,
    bounds,
    check_quorum_6_2,
    commit_index_3_5,
    commit_only_own_term_3_6_2,
    leader_election_3_4,
    leader_sends_before_its_disk_10_2_1,
    leadership_transfer_3_10,
    lease_6_4_1,
    linearizable_read_6_4,
    log_matching_3_5,
    membership_4_1,
    pre_vote_9_6,
    restart_3_8,
    snapshot_5,
    sole_voter_waits_for_its_disk_3_8,
    vote_survives_restart_3_8,
}

#[test]
fn every_file_is_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/consensus/testdata");
    let files = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        FILES
            .iter()
            .map(|name| format!("{name}.txt"))
            .collect::<Vec<_>>()
    );
}
