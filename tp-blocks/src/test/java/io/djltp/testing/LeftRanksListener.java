package io.djltp.testing;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.testng.IClassListener;
import org.testng.ITestClass;

import java.util.List;
import java.util.concurrent.TimeUnit;

/** Names the test class that has left ranks running, and what they are doing. */
public final class LeftRanksListener implements IClassListener {

    private static final Logger logger = LoggerFactory.getLogger(LeftRanksListener.class);

    private RankThreads before = new RankThreads();

    /** {@inheritDoc} */
    @Override
    public void onAfterClass(ITestClass testClass) {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(2);
        List<Thread> left = before.added();
        while (!left.isEmpty() && System.nanoTime() < end) {
            try {
                Thread.sleep(10);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                return;
            }
            left = before.added();
        }
        if (!left.isEmpty()) {
            logger.error("{} has left {}", testClass.getName(), RankThreads.describe(left));
            before = new RankThreads();
        }
    }
}
