package io.djltp.testing;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.testng.IClassListener;
import org.testng.ITestClass;

import java.util.List;

/** Names the test class that has left ranks running, and what they are doing. */
public final class LeftRanksListener implements IClassListener {

    private static final Logger logger = LoggerFactory.getLogger(LeftRanksListener.class);

    private RankThreads before = new RankThreads();

    /** {@inheritDoc} */
    @Override
    public void onAfterClass(ITestClass testClass) {
        List<Thread> left;
        try {
            left = before.await(0, 2);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return;
        }
        if (!left.isEmpty()) {
            logger.error("{} has left {}", testClass.getName(), RankThreads.describe(left));
            before = new RankThreads();
        }
    }
}
