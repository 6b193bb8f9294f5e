//! The names of all directories, and which of them are durable.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use super::Inode;
use super::coins::Coins;

/// A name in a directory.
pub(super) type Entry = (Inode, OsString);
type Entries = BTreeMap<Entry, Inode>;

/// What one operation makes of names: it reaches the disk whole or not at all, so that a rename
/// never survives by half.
#[derive(Clone, Debug)]
pub(super) struct Change(pub(super) Vec<(Entry, Option<Inode>)>);

impl Change {
    fn apply(&self, entries: &mut Entries) {
        for (entry, inode) in &self.0 {
            match inode {
                Some(inode) => entries.insert(entry.clone(), *inode),
                None => entries.remove(entry),
            };
        }
    }

    /// One, or two if something moves between them.
    fn directories(&self) -> BTreeSet<Inode> {
        self.0.iter().map(|((parent, _), _)| *parent).collect()
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    current: Entries,
    durable: Entries,
    /// What leads from `durable` to `current`.
    pending: Vec<Change>,
}

impl Names {
    pub(super) fn get(&self, directory: Inode, name: &OsStr) -> Option<Inode> {
        self.current.get(&(directory, name.to_owned())).copied()
    }

    pub(super) fn list(&self, directory: Inode) -> impl Iterator<Item = (&OsStr, Inode)> {
        list(&self.current, directory)
    }

    pub(super) fn links(&self, inode: Inode) -> usize {
        self.current.values().filter(|it| **it == inode).count()
    }

    pub(super) fn change(&mut self, change: Change) {
        change.apply(&mut self.current);
        self.pending.push(change);
    }

    /// Makes the names of one directory durable, and what has to be on disk before them.
    pub(super) fn sync(&mut self, directory: Inode) {
        let mut needed = BTreeSet::from([directory]);
        let (mut synced, mut left) = (Vec::new(), Vec::new());
        for change in self.pending.drain(..).rev() {
            let directories = change.directories();
            if directories.is_disjoint(&needed) {
                left.push(change);
            } else {
                needed.extend(directories);
                synced.push(change);
            }
        }
        for change in synced.iter().rev() {
            change.apply(&mut self.durable);
        }
        left.reverse();
        self.pending = left;
    }

    /// What is there after the power loss, all of it durable: of each directory a first part of its
    /// changes.
    pub(super) fn survivor(&self, coins: &mut Coins) -> Self {
        let mut kept: BTreeMap<Inode, usize> = BTreeMap::new();
        for directory in self.pending.iter().flat_map(Change::directories) {
            *kept.entry(directory).or_default() += usize::from(coins.toss());
        }
        let mut entries = self.durable.clone();
        for change in &self.pending {
            let directories = change.directories();
            let survives = directories.iter().all(|directory| kept[directory] > 0);
            for directory in directories {
                kept.entry(directory)
                    .and_modify(|left| *left = if survives { *left - 1 } else { 0 });
            }
            if survives {
                change.apply(&mut entries);
            }
        }
        // What no name leads to is gone.
        let found = inodes(&entries);
        entries.retain(|(directory, _), _| found.contains(directory));
        Self {
            current: entries.clone(),
            durable: entries,
            pending: Vec::new(),
        }
    }

    /// The root and everything below it.
    pub(super) fn inodes(&self) -> BTreeSet<Inode> {
        inodes(&self.current)
    }
}

fn list(entries: &Entries, directory: Inode) -> impl Iterator<Item = (&OsStr, Inode)> {
    entries
        .range((directory, OsString::new())..)
        .take_while(move |((parent, _), _)| *parent == directory)
        .map(|((_, name), inode)| (name.as_os_str(), *inode))
}

fn inodes(entries: &Entries) -> BTreeSet<Inode> {
    let mut found = BTreeSet::from([Inode::ROOT]);
    let mut unseen = vec![Inode::ROOT];
    while let Some(directory) = unseen.pop() {
        for (_, inode) in list(entries, directory) {
            if found.insert(inode) {
                unseen.push(inode);
            }
        }
    }
    found
}
