//! The orders of one I/O thread to one GPU thread, in order, whether or not there is room for them.
//!
//! What must not be lost (a cancel, a reset, a plan of disturbances) waits here while the inbox of the
//! GPU thread is full. The invariant: orders arrive in the order in which they were given, and what
//! waits is bounded: while anything waits no request is handed over, so there is at most one cancel for
//! each that the GPU thread has; a reset has a connection that waits for it; and of plans, of which
//! only the latest counts, there is one for each seat.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ring::{Inbox, Order};

/// The way to one GPU thread.
#[derive(Debug)]
pub(crate) struct Outbox {
    inbox: Arc<Inbox>,
    unsent: VecDeque<Order>,
}

impl Outbox {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Self {
        Self { inbox, unsent: VecDeque::new() }
    }

    /// Hands a request over, or gives it back: there is no room, or others wait for it already.
    ///
    /// # Errors
    /// The order, which was not given.
    pub(crate) fn submit(&mut self, order: Order) -> Result<(), Order> {
        self.send_unsent();
        if self.unsent.is_empty() { self.inbox.push(order) } else { Err(order) }
    }

    /// Hands over what must arrive: now, or as soon as there is room.
    pub(crate) fn give(&mut self, order: Order) {
        self.send_unsent();
        let refused = match self.unsent.is_empty() {
            true => self.inbox.push(order).err(),
            false => Some(order),
        };
        if let Some(order) = refused {
            if let Order::Disturb { seat, change, .. } = order {
                // The latest, which need not be the last that comes.
                let later = |waiting: &Order| is_plan(waiting, seat, |other| other > change);
                if self.unsent.iter().any(later) {
                    return;
                }
                self.unsent.retain(|waiting| !is_plan(waiting, seat, |_| true));
            }
            self.unsent.push_back(order);
        }
    }

    /// Hands over what waits, as far as there is room.
    pub(crate) fn send_unsent(&mut self) {
        while let Some(order) = self.unsent.pop_front() {
            if let Err(order) = self.inbox.push(order) {
                self.unsent.push_front(order);
                return;
            }
        }
    }
}

/// Whether it is a plan for this seat, of a change that is meant.
fn is_plan(order: &Order, of: u16, meant: impl Fn(u64) -> bool) -> bool {
    matches!(order, Order::Disturb { seat, change, .. } if *seat == of && meant(*change))
}

#[cfg(test)]
mod tests {
    use llmsim_engine::observe::Siblings;
    use llmsim_engine::sim::Job;
    use llmsim_engine::units::{JobId, SimTime, Tokens};

    use super::*;

    const AT: SimTime = SimTime::ZERO;

    fn submit(id: u64) -> Order {
        let job = Job {
            id: JobId(id),
            prompt: Tokens::new(1),
            max_tokens: Tokens::new(1),
            stop_after: None,
            priority: 0,
            chain: None,
        };
        let siblings = Siblings::none(job.id);
        Order::Submit { seat: 0, at: AT, received: AT, job, siblings }
    }

    fn cancel(id: u64) -> Order {
        Order::Cancel { seat: 0, at: AT, id: JobId(id) }
    }

    /// The plan of a change.
    fn plan(seat: u16, number: u64) -> Order {
        Order::Disturb { seat, at: AT, change: number, timeline: Box::default() }
    }

    /// An inbox that has just room for this many.
    fn with_room(room: usize) -> (Outbox, Arc<Inbox>) {
        let inbox = Arc::new(Inbox::new());
        inbox.bell.serve_thread(std::thread::current());
        let mut filler = 0;
        while inbox.push(submit(1_000_000 + filler)).is_ok() {
            filler += 1;
        }
        (0..room).for_each(|_| drop(inbox.pop()));
        (Outbox::new(Arc::clone(&inbox)), inbox)
    }

    fn words(order: &Order) -> Option<String> {
        Some(match order {
            Order::Submit { job, .. } if job.id.0 >= 1_000_000 => return None,
            Order::Submit { job, .. } => format!("submit {}", job.id.0),
            Order::Cancel { id, .. } => format!("cancel {}", id.0),
            Order::ResetPrefixCache { seat, .. } => format!("reset {seat}"),
            Order::Disturb { seat, change, .. } => format!("plan {change} of {seat}"),
        })
    }

    /// All that arrives from now on.
    fn arrivals(outbox: &mut Outbox, inbox: &Inbox) -> Vec<String> {
        let mut arrived = Vec::new();
        while let Some(order) = inbox.pop() {
            arrived.extend(words(&order));
            outbox.send_unsent();
        }
        assert!(outbox.unsent.is_empty());
        arrived
    }

    #[test]
    fn orders_arrive_as_they_were_given_though_some_had_to_wait() {
        let (mut outbox, inbox) = with_room(2);
        outbox.submit(submit(1)).unwrap();
        outbox.give(plan(0, 1));
        outbox.give(cancel(1));
        outbox.give(plan(0, 2));
        // There is room again, but not for those who come later.
        inbox.pop();
        outbox.give(cancel(7));
        let arrived = arrivals(&mut outbox, &inbox);
        assert_eq!(arrived, ["submit 1", "plan 1 of 0", "cancel 1", "plan 2 of 0", "cancel 7"]);
    }

    #[test]
    fn of_plans_that_wait_the_latest_for_each_seat_counts() {
        let (mut outbox, inbox) = with_room(0);
        for number in 1..=1_000 {
            outbox.give(plan(0, number));
            outbox.give(plan(1, number));
        }
        // Told late: another I/O thread, or another helper, was slower.
        outbox.give(plan(1, 999));
        assert_eq!(outbox.unsent.len(), 2);
        let arrived = arrivals(&mut outbox, &inbox);
        assert_eq!(arrived, ["plan 1000 of 0", "plan 1000 of 1"]);
    }

    #[test]
    fn whoever_submits_and_hangs_up_does_not_lengthen_the_line() {
        let (mut outbox, inbox) = with_room(1);
        outbox.submit(submit(1)).unwrap();
        outbox.give(cancel(1));
        for id in 2..1_000 {
            // Refused, so there is nothing to cancel.
            assert!(outbox.submit(submit(id)).is_err());
        }
        assert_eq!(outbox.unsent.len(), 1);
        // With room for one, that which waits goes first.
        inbox.pop();
        assert!(outbox.submit(submit(1_000)).is_err());
        inbox.pop();
        outbox.submit(submit(1_001)).unwrap();
        assert_eq!(arrivals(&mut outbox, &inbox), ["submit 1", "cancel 1", "submit 1001"]);
    }
}
