//! An interval tree: a balanced (AVL) tree of ranges in the order of their starts, each node with
//! the last end of its subtree. Balance depends on the shape alone, so that no choice of keys makes
//! it deep.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use bytes::Bytes;

use super::{put, take};
use crate::KeyRange;

/// The end of a range.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Before(Bytes),
    Never,
}

impl End {
    fn lies_behind(&self, key: &[u8]) -> bool {
        match self {
            Self::Before(end) => key < &end[..],
            Self::Never => true,
        }
    }
}

type Link<T> = Option<Box<Node<T>>>;

/// One range, and its items.
#[derive(Debug)]
struct Node<T> {
    start: Bytes,
    end: End,
    /// Sorted; never empty.
    items: Vec<T>,
    height: u32,
    /// The last end in this subtree.
    last_end: End,
    left: Link<T>,
    right: Link<T>,
}

/// Ranges with their items.
#[derive(Debug)]
pub(super) struct Intervals<T> {
    root: Link<T>,
}

impl<T> Default for Intervals<T> {
    fn default() -> Self {
        Self { root: None }
    }
}

impl<T: Ord + Copy> Intervals<T> {
    pub(super) fn insert(&mut self, keys: &KeyRange, item: T) {
        let (start, end) = bounds(keys);
        self.root = Some(insert(self.root.take(), start, end, item));
    }

    pub(super) fn remove(&mut self, keys: &KeyRange, item: T) {
        let (start, end) = bounds(keys);
        self.root = remove(self.root.take(), &start, &end, item);
    }

    /// Visits every item of a range that contains `key`, until `show` breaks.
    pub(super) fn visit(
        &self,
        key: &[u8],
        show: &mut impl FnMut(T) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        visit(&self.root, key, show)
    }

    #[cfg(test)]
    pub(super) fn height(&self) -> u32 {
        height(&self.root)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.root.is_none()
    }
}

fn bounds(keys: &KeyRange) -> (Bytes, End) {
    let end = match keys {
        KeyRange::One(key) => {
            let mut behind = key.to_vec();
            behind.push(0);
            End::Before(behind.into())
        }
        KeyRange::Between { end, .. } => End::Before(end.clone()),
        KeyRange::From(_) => End::Never,
    };
    (keys.start().clone(), end)
}

fn visit<T: Copy>(
    link: &Link<T>,
    key: &[u8],
    show: &mut impl FnMut(T) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let Some(node) = link.as_deref().filter(|it| it.last_end.lies_behind(key)) else {
        return ControlFlow::Continue(());
    };
    visit(&node.left, key, show)?;
    if key < &node.start[..] {
        return ControlFlow::Continue(());
    }
    if node.end.lies_behind(key) {
        node.items.iter().copied().try_for_each(&mut *show)?;
    }
    visit(&node.right, key, show)
}

fn insert<T: Ord + Copy>(link: Link<T>, start: Bytes, end: End, item: T) -> Box<Node<T>> {
    let Some(mut node) = link else {
        return Box::new(Node {
            start,
            last_end: end.clone(),
            end,
            items: vec![item],
            height: 1,
            left: None,
            right: None,
        });
    };
    match node.compare(&start, &end) {
        Ordering::Equal => put(&mut node.items, item),
        Ordering::Less => node.left = Some(insert(node.left.take(), start, end, item)),
        Ordering::Greater => node.right = Some(insert(node.right.take(), start, end, item)),
    }
    balanced(node)
}

fn remove<T: Ord + Copy>(link: Link<T>, start: &Bytes, end: &End, item: T) -> Link<T> {
    let mut node = link?;
    match node.compare(start, end) {
        Ordering::Less => node.left = remove(node.left.take(), start, end, item),
        Ordering::Greater => node.right = remove(node.right.take(), start, end, item),
        Ordering::Equal => {
            take(&mut node.items, &item);
            if node.items.is_empty() {
                return joined(node.left.take(), node.right.take());
            }
        }
    }
    Some(balanced(node))
}

/// Joins two trees, all of the first before all of the second.
fn joined<T>(left: Link<T>, right: Link<T>) -> Link<T> {
    let Some(right) = right else {
        return left;
    };
    let (rest, mut first) = without_first(right);
    first.left = left;
    first.right = rest;
    Some(balanced(first))
}

fn without_first<T>(mut node: Box<Node<T>>) -> (Link<T>, Box<Node<T>>) {
    match node.left.take() {
        None => (node.right.take(), node),
        Some(left) => {
            let (rest, first) = without_first(left);
            node.left = rest;
            (Some(balanced(node)), first)
        }
    }
}

impl<T> Node<T> {
    /// The order of a range relative to this node.
    fn compare(&self, start: &Bytes, end: &End) -> Ordering {
        (start, end).cmp(&(&self.start, &self.end))
    }

    /// Updates height and last end after a change of the children.
    fn update(&mut self) {
        self.height = 1 + height(&self.left).max(height(&self.right));
        let children = [&self.left, &self.right].into_iter().flatten();
        let last = children.map(|it| &it.last_end).max();
        self.last_end = last.unwrap_or(&self.end).max(&self.end).clone();
    }
}

fn height<T>(link: &Link<T>) -> u32 {
    link.as_ref().map_or(0, |node| node.height)
}

/// Rebalances a tree whose children's heights differ by two at most.
fn balanced<T>(mut node: Box<Node<T>>) -> Box<Node<T>> {
    node.update();
    let (left, right) = (height(&node.left), height(&node.right));
    if left > right + 1 {
        let child = node.left.take().expect("it is the higher one");
        let inner = height(&child.right) > height(&child.left);
        node.left = Some(if inner { turned_left(child) } else { child });
        turned_right(node)
    } else if right > left + 1 {
        let child = node.right.take().expect("it is the higher one");
        let inner = height(&child.left) > height(&child.right);
        node.right = Some(if inner { turned_right(child) } else { child });
        turned_left(node)
    } else {
        node
    }
}

fn turned_right<T>(mut node: Box<Node<T>>) -> Box<Node<T>> {
    let mut top = node.left.take().expect("there is a left child to rise");
    node.left = top.right.take();
    node.update();
    top.right = Some(node);
    top.update();
    top
}

fn turned_left<T>(mut node: Box<Node<T>>) -> Box<Node<T>> {
    let mut top = node.right.take().expect("there is a right child to rise");
    node.right = top.left.take();
    node.update();
    top.left = Some(node);
    top.update();
    top
}
