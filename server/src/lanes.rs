//! What a request has for each of its choices, or of its prompts: one or many of something.
//!
//! Nearly every request has one, which is looked at for every token, so the first is held in place
//! and the others behind a pointer. The invariant: there is always a first.

use std::convert::Infallible;
use std::iter;
use std::ops::{Index, IndexMut};

/// At least one of something, and never more than [`Lanes::MOST`].
#[derive(Clone, Debug)]
pub(crate) struct Lanes<T> {
    first: T,
    others: Box<[T]>,
}

impl<T> Lanes<T> {
    /// The most lanes of one request: a lane's number has 16 bits in an address.
    pub(crate) const MOST: usize = 1 << 16;

    /// All of `lanes`.
    ///
    /// # Panics
    /// If there are none: every request is for at least one choice.
    pub(crate) fn of(lanes: impl IntoIterator<Item = T>) -> Self {
        let Ok(all) = Self::try_of(lanes.into_iter().map(Ok::<T, Infallible>));
        all
    }

    /// The same of lanes that may fail: all, or the first failure.
    pub(crate) fn try_of<E>(lanes: impl IntoIterator<Item = Result<T, E>>) -> Result<Self, E> {
        let mut lanes = lanes.into_iter();
        let first = lanes.next().expect("there is at least one lane")?;
        let others: Box<[T]> = lanes.collect::<Result<_, E>>()?;
        assert!(others.len() < Self::MOST, "so many lanes are refused with the request");
        Ok(Self { first, others })
    }

    pub(crate) fn len(&self) -> usize {
        1 + self.others.len()
    }

    pub(crate) fn first(&self) -> &T {
        &self.first
    }

    /// Whether there is no other.
    pub(crate) fn is_single(&self) -> bool {
        self.others.is_empty()
    }

    /// Whether any of them is like that; of nearly all requests, one look.
    pub(crate) fn any(&self, is_it: impl Fn(&T) -> bool) -> bool {
        is_it(&self.first) || self.others.iter().any(is_it)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        iter::once(&self.first).chain(&self.others)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        iter::once(&mut self.first).chain(&mut self.others)
    }

    /// For each lane what `make` makes of it.
    pub(crate) fn map<U>(&self, make: impl FnMut(&T) -> U) -> Lanes<U> {
        let mut make = make;
        Lanes { first: make(&self.first), others: self.others.iter().map(make).collect() }
    }
}

impl<T> Index<usize> for Lanes<T> {
    type Output = T;

    fn index(&self, lane: usize) -> &T {
        if lane == 0 { &self.first } else { &self.others[lane - 1] }
    }
}

impl<T> IndexMut<usize> for Lanes<T> {
    fn index_mut(&mut self, lane: usize) -> &mut T {
        if lane == 0 { &mut self.first } else { &mut self.others[lane - 1] }
    }
}
