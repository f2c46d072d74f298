package io.djltp.checkpoint;

import io.djltp.update.RowReader;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;

/** What training waits for while a state is read. */
public class StateReadingTest {

    private static final Duration LIMIT = Duration.ofSeconds(20);

    private final StateReading reading = new StateReading();
    private final ReadArray weight = new ReadArray("w", 10, 400);
    private final ReadArray momentum = new ReadArray("w", 10, 400);
    private final ReadArray other = new ReadArray(null, 1, 8);

    /** A row of rank 0 is free when it was read of the weight and of its momentum. */
    @Test(timeOut = 20_000)
    public void rowsAreFreeOnceAllOfTheirParameterWasRead() throws Exception {
        reading.add(0, weight);
        reading.add(0, momentum);
        reading.add(0, other);
        Assert.assertNull(reading.ofParameter(1, "w", LIMIT, Assert::fail)); // another rank's
        Assert.assertNull(reading.ofParameter(0, "v", LIMIT, Assert::fail));
        RowReader reader = reading.ofParameter(0, "w", LIMIT, Assert::fail);
        CompletableFuture<Void> others = waiting(() -> reading.awaitOthers(LIMIT, Assert::fail));
        reading.setRead(other, 8);
        others.get();
        CompletableFuture<Void> three = waiting(() -> reader.await(3));
        reading.setRead(weight, 400);
        reading.setRead(momentum, 119); // a byte of row 2 is missing
        assertWaits(three);
        reading.setRead(momentum, 120);
        three.get();
        CompletableFuture<Void> all = waiting(() -> reader.await(RowReader.ALL));
        reading.setRead(momentum, 399);
        assertWaits(all);
        reading.setRead(momentum, 400);
        all.get();
        Assert.assertNull(reading.ofParameter(0, "w", LIMIT, Assert::fail)); // read
        CompletableFuture<Void> end = waiting(() -> reading.awaitAll(LIMIT, Assert::fail));
        assertWaits(end); // of other arrays nothing is known
        Assert.assertTrue(reading.end());
        end.get();
    }

    /** The page cache takes the rest once an update waits, and not what all steps wait for. */
    @Test(timeOut = 20_000)
    public void anUpdateThatWaitsHurriesTheRest() throws Exception {
        reading.add(0, weight);
        reading.add(0, other);
        RowReader reader = reading.ofParameter(0, "w", LIMIT, Assert::fail);
        CompletableFuture<Void> others = waiting(() -> reading.awaitOthers(LIMIT, Assert::fail));
        assertWaits(others);
        reading.setRead(other, 8);
        others.get();
        reading.setRead(weight, 40);
        reader.await(1); // was read
        Assert.assertFalse(reading.isHurried());
        CompletableFuture<Void> two = waiting(() -> reader.await(2));
        assertWaits(two);
        Assert.assertTrue(reading.isHurried());
        reading.setRead(weight, 400);
        two.get();
    }

    /** Two ranks wait, one of them gives the reading up, once. */
    @Test(timeOut = 20_000)
    public void theLimitIsOfAllWaitingTogether() throws Exception {
        StateReading hanging = new StateReading();
        hanging.add(0, new ReadArray("w", 2, 8));
        AtomicInteger abandoned = new AtomicInteger();
        Duration limit = Duration.ofMillis(200);
        RowReader reader = hanging.ofParameter(0, "w", limit, () -> abandoned.incrementAndGet());
        CompletableFuture<Void> one = waiting(() -> reader.await(1));
        CompletableFuture<Void> two = waiting(() -> reader.await(2));
        one.get();
        two.get();
        Assert.assertEquals(abandoned.get(), 1);
        Assert.assertTrue(hanging.isAbandoned());
        Assert.assertFalse(hanging.end()); // what was read is not of one step
    }

    private static CompletableFuture<Void> waiting(Runnable task) {
        return CompletableFuture.runAsync(task);
    }

    private static void assertWaits(CompletableFuture<Void> waiting) throws Exception {
        Assert.assertThrows(TimeoutException.class, () -> waiting.get(50, TimeUnit.MILLISECONDS));
    }
}
