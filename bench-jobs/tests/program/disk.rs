//! What a run leaves on its target's disk, and whether there is room for it.

use dengine_bench_model::results::Report;
use dengine_fake_kv::{Load, Peer};

use crate::{bench, read, result};

/// Others' keys, one of which looks like the tool's own without a folder.
const OF_OTHERS: [&str; 3] = ["00000001", "dengine-bench/notes", "users/1"];

#[tokio::test]
async fn a_run_takes_away_what_it_wrote_and_nothing_else() {
    // Also one that fails, and one that is cut short.
    for (arguments, fail_every, hang_at) in [
        ("put --clients 4 --total 2500", None, None),
        ("range --clients 4 --total 300 --key-space 100", None, None),
        ("put --clients 4 --total 500", Some(50), None),
        ("put --clients 4 --total 500 --timeout 2s", None, Some(300)),
    ] {
        let peer = Peer::under(Load {
            fail_every,
            hang_at,
            ..Load::default()
        })
        .await;
        OF_OTHERS.iter().for_each(|key| peer.holds(key, Vec::new()));
        let ran = bench(&peer.address, arguments).await;
        assert_eq!(ran.status != 0, fail_every.is_some() || hang_at.is_some());
        assert!(peer.puts() >= 100, "{arguments}");
        assert_eq!(peer.left(), OF_OTHERS, "{arguments}: {}", ran.stderr);
        assert!((1..=1_000).contains(&peer.largest_delete()), "{arguments}");
    }
}

#[tokio::test]
async fn what_a_killed_run_left_goes_with_the_next_run_and_a_living_one_stays() {
    let peer = Peer::under(Load::default()).await;
    OF_OTHERS.iter().for_each(|key| peer.holds(key, Vec::new()));
    for number in 0..2_500 {
        // Its time was over in 2001.
        peer.holds(
            &format!("dengine-bench/3a4fc880-00ff/{number:08x}"),
            Vec::new(),
        );
    }
    let lives = "dengine-bench/ffffff00-00ff/00000001";
    peer.holds(lives, Vec::new());
    let ran = bench(&peer.address, "put --total 10 --warm-up 0").await;
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let mut expected = [&OF_OTHERS[..], &[lives]].concat();
    expected.sort_unstable();
    assert_eq!(peer.left(), expected);
    assert!(peer.largest_delete() <= 1_000);
}

/// A thousand keys with large values are more than one request may delete; neither this run nor a
/// later one took them away.
#[tokio::test]
async fn keys_that_are_too_large_to_go_in_one_request_go_in_several() {
    let peer = Peer::under(Load {
        deletion_keys_max: Some(90),
        ..Load::default()
    })
    .await;
    OF_OTHERS.iter().for_each(|key| peer.holds(key, Vec::new()));
    for number in 0..1_500 {
        peer.holds(
            &format!("dengine-bench/3a4fc880-00ff/{number:08x}"),
            Vec::new(),
        );
    }
    let ran = bench(&peer.address, "put --clients 4 --total 1500").await;
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert_eq!(peer.left(), OF_OTHERS, "{}", ran.stderr);
    assert!((1..=90).contains(&peer.largest_delete()));
}

#[tokio::test]
async fn bare_keys_are_left_as_other_tools_leave_them() {
    let peer = Peer::under(Load::default()).await;
    let arguments = "put --total 3 --warm-up 0 --sequential-keys --key-prefix=";
    let (status, result, summary) = result(&peer.address, arguments).await;
    assert_eq!((status, result.shape.key_folder_size), (0, 0), "{summary}");
    assert_eq!(peer.left(), ["00000000", "00000001", "00000002"]);
}

#[tokio::test]
async fn keys_that_could_not_be_deleted_are_in_the_result() {
    let peer = Peer::under(Load {
        deletions: Some(1),
        ..Load::default()
    })
    .await;
    let ran = bench(
        &peer.address,
        "put --total 2500 --clients 4 --warm-up 0 --json -",
    )
    .await;
    let report = read(&ran);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let left = report.left_over.unwrap();
    let words = "1500 of 2500 keys were not deleted";
    assert!(left.starts_with("below dengine-bench/"), "{left}");
    assert!(left.contains(words), "{left}");
    assert!(left.contains("no more deletions"), "{left}");
    assert!(ran.stderr.contains(words), "{}", ran.stderr);
}

#[tokio::test]
async fn a_run_that_was_cut_short_tells_what_it_left_in_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("result.json");
    for (deletions, expected) in [(None, None), (Some(0), Some("no more deletions"))] {
        let peer = Peer::under(Load {
            hang_at: Some(300),
            deletions,
            ..Load::default()
        })
        .await;
        let arguments = format!(
            "put --clients 4 --total 500 --timeout 2s --json {}",
            path.display()
        );
        let ran = bench(&peer.address, &arguments).await;
        assert_eq!(ran.status, 1, "{}", ran.stderr);
        let text = std::fs::read_to_string(&path).unwrap();
        let report: Report = serde_json::from_str(&text).unwrap();
        let left = report.left_over.unwrap_or_default();
        match expected {
            None => assert_eq!(left, ""),
            Some(words) => assert!(left.contains(words), "{left}"),
        }
    }
}

#[tokio::test]
async fn a_large_load_is_refused_if_a_member_does_not_say_what_it_has_room_for() {
    let peer = Peer::under(Load {
        free_bytes: Some(8 << 30),
        // Nobody listens there.
        beside: Some("127.0.0.1:1".to_owned()),
        ..Load::default()
    })
    .await;
    let large = "put --total 20000 --clients 50 --value-size 1024 --warm-up 0";
    let ran = bench(&peer.address, large).await;
    assert_eq!((ran.status, peer.puts()), (1, 0), "{}", ran.stdout);
    let why = "the free space is unknown";
    assert!(ran.stdout.contains(why), "{}", ran.stdout);
    assert!(ran.stdout.contains("127.0.0.1:1"), "{}", ran.stdout);
    let small = bench(&peer.address, "put --total 100 --warm-up 0").await;
    assert_eq!(small.status, 0, "{}", small.stderr);
    let anyway = bench(&peer.address, &format!("{large} --ignore-space")).await;
    assert_eq!(anyway.status, 0, "{}", anyway.stderr);
}

#[tokio::test]
async fn a_load_that_would_fill_the_disk_is_refused_before_it_writes() {
    let peer = Peer::under(Load {
        free_bytes: Some(1 << 30),
        ..Load::default()
    })
    .await;
    let ran = bench(&peer.address, "run --profile growth").await;
    assert_eq!((ran.status, peer.puts()), (1, 0), "{}", ran.stdout);
    let why = "nothing was written: this run needs about";
    assert!(ran.stdout.contains(why), "{}", ran.stdout);
    assert!(ran.stdout.contains("demo-0 has 1024 MiB"), "{}", ran.stdout);
}
