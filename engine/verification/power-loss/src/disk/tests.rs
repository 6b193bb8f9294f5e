//! What is durable when, operation by operation, and some rules for any sequence of them.

use proptest::prelude::*;

use super::*;

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

fn file(disk: &mut Disk, text: &str) -> Inode {
    disk.create(Inode::ROOT, name(text), Kind::File)
        .unwrap()
        .inode
}

fn folder(disk: &mut Disk, text: &str) -> Inode {
    disk.create(Inode::ROOT, name(text), Kind::Directory)
        .unwrap()
        .inode
}

/// A file that is durable with its name.
fn durable_file(disk: &mut Disk, text: &str, bytes: &[u8]) -> Inode {
    let inode = file(disk, text);
    disk.write(inode, 0, bytes).unwrap();
    disk.sync_file(inode).unwrap();
    disk.sync_directory(Inode::ROOT).unwrap();
    inode
}

fn names(disk: &Disk) -> Vec<String> {
    let list = disk.list(Inode::ROOT).unwrap();
    list.into_iter()
        .map(|(name, _)| name.into_string().unwrap())
        .collect()
}

fn content(disk: &Disk, text: &str) -> Vec<u8> {
    let found = disk.lookup(Inode::ROOT, name(text)).unwrap();
    disk.read(found.inode, 0, usize::MAX).unwrap().to_vec()
}

#[test]
fn bytes_are_durable_after_a_sync_of_their_file_and_not_before() {
    let mut disk = Disk::new();
    let inode = durable_file(&mut disk, "a", b"old");
    disk.write(inode, 0, b"new bytes").unwrap();
    assert_eq!(content(&disk, "a"), b"new bytes");
    assert_eq!(content(&disk.power_loss(0, 1), "a"), b"old");
    assert_eq!(content(&disk.power_loss(100, 1), "a"), b"new bytes");
    disk.sync_file(inode).unwrap();
    assert_eq!(content(&disk.power_loss(0, 1), "a"), b"new bytes");
}

#[test]
fn a_name_needs_a_sync_of_its_directory() {
    let mut disk = Disk::new();
    let inode = file(&mut disk, "a");
    disk.write(inode, 0, b"bytes").unwrap();
    disk.sync_file(inode).unwrap();
    assert!(names(&disk.power_loss(0, 1)).is_empty());
    disk.sync_directory(Inode::ROOT).unwrap();
    assert_eq!(content(&disk.power_loss(0, 1), "a"), b"bytes");
}

#[test]
fn what_lies_in_a_directory_is_lost_with_its_name() {
    let mut disk = Disk::new();
    let inner = folder(&mut disk, "inner");
    disk.create(inner, name("a"), Kind::File).unwrap();
    disk.sync_directory(inner).unwrap();
    let lost = disk.power_loss(0, 1);
    assert!(names(&lost).is_empty());
    assert_eq!(lost.attributes(inner), Err(Error::NotFound));
    disk.sync_directory(Inode::ROOT).unwrap();
    assert_eq!(disk.power_loss(0, 1).list(inner).unwrap().len(), 1);
}

#[test]
fn a_rename_survives_whole_or_not_at_all() {
    let mut disk = Disk::new();
    durable_file(&mut disk, "new", b"new");
    durable_file(&mut disk, "old", b"old");
    disk.rename((Inode::ROOT, name("new")), (Inode::ROOT, name("old")))
        .unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..50 {
        let survivor = disk.power_loss(50, seed);
        seen.insert((names(&survivor), content(&survivor, "old")));
    }
    let before = (vec!["new".to_owned(), "old".to_owned()], b"old".to_vec());
    let after = (vec!["old".to_owned()], b"new".to_vec());
    assert_eq!(seen, BTreeSet::from([before, after]));
}

#[test]
fn a_rename_between_directories_is_durable_with_either() {
    for synced in [0, 1] {
        let mut disk = Disk::new();
        durable_file(&mut disk, "a", b"bytes");
        let inner = folder(&mut disk, "inner");
        disk.sync_directory(Inode::ROOT).unwrap();
        disk.rename((Inode::ROOT, name("a")), (inner, name("b")))
            .unwrap();
        disk.sync_directory([Inode::ROOT, inner][synced]).unwrap();
        let survivor = disk.power_loss(0, 1);
        assert_eq!(names(&survivor), ["inner"]);
        assert!(survivor.lookup(inner, name("b")).is_ok());
    }
}

#[test]
fn changes_of_one_directory_survive_in_order_and_of_two_in_any() {
    let mut disk = Disk::new();
    let inner = folder(&mut disk, "inner");
    disk.sync_directory(Inode::ROOT).unwrap();
    file(&mut disk, "a");
    disk.create(inner, name("x"), Kind::File).unwrap();
    file(&mut disk, "b");
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let survivor = disk.power_loss(50, seed);
        seen.insert((names(&survivor).len(), survivor.list(inner).unwrap().len()));
        assert!(names(&survivor) != ["b", "inner"]);
    }
    assert_eq!(
        seen,
        BTreeSet::from([(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)])
    );
}

#[test]
fn sectors_are_torn_from_each_other_and_never_within() {
    let mut disk = Disk::new();
    let inode = durable_file(&mut disk, "a", &[1; 8 * SECTOR_BYTES]);
    disk.write(inode, 0, &[2; 8 * SECTOR_BYTES]).unwrap();
    disk.write(inode, 0, &[3; 8 * SECTOR_BYTES]).unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..20 {
        for sector in content(&disk.power_loss(50, seed), "a").chunks(SECTOR_BYTES) {
            assert!(sector.iter().all(|byte| *byte == sector[0]));
            seen.insert(sector[0]);
        }
    }
    assert_eq!(seen, BTreeSet::from([1, 2, 3]));
}

#[test]
fn of_what_was_appended_a_first_part_survives() {
    let mut disk = Disk::new();
    let inode = durable_file(&mut disk, "a", &[1; 700]);
    for _ in 0..8 {
        let end = disk.attributes(inode).unwrap().bytes;
        disk.write(inode, end, &[2; 300]).unwrap();
    }
    let whole = content(&disk, "a");
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let survivor = content(&disk.power_loss(50, seed), "a");
        assert!(survivor.len() >= 700 && whole.starts_with(&survivor));
        seen.insert(survivor.len());
    }
    assert!(seen.len() > 3, "{seen:?}");
}

#[test]
fn what_was_cut_off_a_file_reads_as_zeros_when_it_grows() {
    let mut disk = Disk::new();
    let inode = durable_file(&mut disk, "a", &[1; 700]);
    disk.set_length(inode, 100).unwrap();
    disk.allocate(inode, 800).unwrap();
    disk.allocate(inode, 50).unwrap();
    let expected = [vec![1; 100], vec![0; 700]].concat();
    assert_eq!(content(&disk, "a"), expected);
    assert_eq!(content(&disk.power_loss(0, 1), "a"), [1; 700]);
    disk.sync_file(inode).unwrap();
    assert_eq!(content(&disk.power_loss(0, 1), "a"), expected);
}

#[test]
fn a_file_has_all_its_names_and_outlives_them_while_it_is_open() {
    let mut disk = Disk::new();
    let inode = durable_file(&mut disk, "a", b"bytes");
    assert_eq!(disk.link(inode, Inode::ROOT, name("b")).unwrap().links, 2);
    disk.remove_file(Inode::ROOT, name("a")).unwrap();
    assert_eq!(content(&disk, "b"), b"bytes");
    disk.remove_file(Inode::ROOT, name("b")).unwrap();
    assert_eq!(disk.read(inode, 1, 2).unwrap(), b"yt");
    assert_eq!(names(&disk.power_loss(0, 1)), ["a"]);
    assert_eq!(
        disk.power_loss(100, 1).attributes(inode),
        Err(Error::NotFound)
    );
}

#[test]
fn only_what_is_empty_or_of_the_same_kind_is_replaced() {
    let mut disk = Disk::new();
    let at = |text| (Inode::ROOT, name(text));
    file(&mut disk, "file");
    let full = folder(&mut disk, "full");
    disk.create(full, name("x"), Kind::File).unwrap();
    folder(&mut disk, "empty");
    assert_eq!(
        disk.rename(at("file"), at("empty")),
        Err(Error::IsADirectory)
    );
    assert_eq!(
        disk.rename(at("empty"), at("file")),
        Err(Error::NotADirectory)
    );
    assert_eq!(disk.rename(at("empty"), at("full")), Err(Error::NotEmpty));
    assert_eq!(disk.rename(at("nothing"), at("full")), Err(Error::NotFound));
    assert_eq!(
        disk.remove_directory(Inode::ROOT, name("full")),
        Err(Error::NotEmpty)
    );
    assert_eq!(
        disk.remove_file(Inode::ROOT, name("full")),
        Err(Error::IsADirectory)
    );
    disk.rename(at("full"), at("empty")).unwrap();
    assert_eq!(names(&disk), ["empty", "file"]);
}

#[test]
fn the_power_goes_before_an_operation_or_after_it() {
    for (moment, kept) in [(Moment::Before, &b"old"[..]), (Moment::After, b"new")] {
        let cut = Cut {
            at: CutAt::Sync(3),
            moment,
        };
        let mut disk = Disk::new();
        disk.set_cut(Some(cut));
        let inode = durable_file(&mut disk, "a", b"old");
        disk.write(inode, 0, b"new").unwrap();
        assert!(!disk.is_cut());
        assert_eq!(disk.sync_file(inode), Err(Error::PowerLost));
        assert!(disk.is_cut());
        assert_eq!(disk.write(inode, 0, b"lost"), Err(Error::PowerLost));
        assert_eq!(disk.list(Inode::ROOT), Err(Error::PowerLost));
        assert_eq!(content(&disk.power_loss(0, 1), "a"), kept);
    }
}

#[test]
fn a_liar_acknowledges_and_does_nothing() {
    for lie in [Lie::Files, Lie::Directories] {
        let mut disk = Disk::new();
        disk.set_lie(lie, 2);
        durable_file(&mut disk, "a", b"bytes");
        let second = file(&mut disk, "b");
        disk.write(second, 0, b"bytes").unwrap();
        disk.sync_file(second).unwrap();
        disk.sync_directory(Inode::ROOT).unwrap();
        let survivor = disk.power_loss(0, 1);
        assert_eq!(content(&survivor, "a"), b"bytes");
        match lie {
            Lie::Files => assert!(content(&survivor, "b").is_empty()),
            Lie::Directories => assert_eq!(names(&survivor), ["a"]),
        }
    }
}

/// One operation on a disk with few names, which may be refused.
fn operation(disk: &mut Disk, (what, first, second, number): (u8, u8, u8, u16)) {
    let entry = |place: u8| {
        let inner = disk.lookup(Inode::ROOT, name("inner")).map(|it| it.inode);
        let parent = inner.ok().filter(|_| place % 2 == 1).unwrap_or(Inode::ROOT);
        (parent, ["inner", "a", "b"][usize::from(place) % 3])
    };
    let ((parent, text), (to, to_text)) = (entry(first), entry(second));
    let found = disk.lookup(parent, name(text)).map(|it| it.inode);
    let inode = found.unwrap_or(Inode(u64::MAX));
    let bytes = vec![first; usize::from(number) % 1500];
    let _ = match what % 10 {
        0 => disk.create(parent, name(text), Kind::File).map(drop),
        1 => disk
            .create(Inode::ROOT, name("inner"), Kind::Directory)
            .map(drop),
        2 | 3 => disk.write(inode, u64::from(number) % 2000, &bytes),
        4 => disk.set_length(inode, u64::from(number) % 3000),
        5 => disk.sync_file(inode),
        6 => disk.sync_directory(parent),
        // The kernel refuses to move a directory into itself, and does not ask.
        7 if found == Ok(to) => Ok(()),
        7 => disk.rename((parent, name(text)), (to, name(to_text))),
        8 => disk.link(inode, to, name(to_text)).map(drop),
        _ => disk.remove_file(parent, name(text)),
    };
}

/// Everything that can be found.
fn dump(disk: &Disk) -> Vec<(Inode, OsString, Attributes, Vec<u8>)> {
    let mut found = Vec::new();
    let mut unseen = vec![Inode::ROOT];
    while let Some(directory) = unseen.pop() {
        for (name, attributes) in disk.list(directory).unwrap() {
            let bytes = match attributes.kind {
                Kind::File => disk.read(attributes.inode, 0, usize::MAX).unwrap().to_vec(),
                Kind::Directory => {
                    unseen.push(attributes.inode);
                    Vec::new()
                }
            };
            found.push((directory, name, attributes, bytes));
        }
    }
    found
}

proptest! {
    #[test]
    fn all_of_it_survives_or_what_was_synced_and_survives_again(
        operations in proptest::collection::vec(any::<(u8, u8, u8, u16)>(), 1..60),
        seed in any::<u64>(),
    ) {
        let mut disk = Disk::new();
        for it in operations {
            operation(&mut disk, it);
        }
        prop_assert_eq!(dump(&disk.power_loss(100, seed)), dump(&disk));
        let survivor = disk.power_loss(50, seed);
        prop_assert_eq!(dump(&survivor.power_loss(0, seed)), dump(&survivor));
        prop_assert_eq!(dump(&disk.power_loss(50, seed)), dump(&survivor));

        for (_, _, attributes, _) in dump(&disk) {
            match attributes.kind {
                Kind::File => disk.sync_file(attributes.inode),
                Kind::Directory => disk.sync_directory(attributes.inode),
            }.unwrap();
        }
        disk.sync_directory(Inode::ROOT).unwrap();
        prop_assert_eq!(dump(&disk.power_loss(0, seed)), dump(&disk));
    }
}
