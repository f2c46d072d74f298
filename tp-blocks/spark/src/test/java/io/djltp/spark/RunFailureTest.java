package io.djltp.spark;

import org.testng.Assert;
import org.testng.annotations.Test;

/** What is said of an executor that was lost fits Spark's reason. */
public class RunFailureTest {

    @Test
    public void memoryIsNoCauseOfSilence() {
        Assert.assertEquals(
                RunFailure.lost(0, "2", "host", "Executor heartbeat timed out after 154742 ms\n")
                        .message(),
                "task 0: executor 2 on host was lost (Executor heartbeat timed out after 154742"
                        + " ms). It stood still, or the network is down: Spark waits"
                        + " spark.network.timeout for its heartbeats");
        String killed = RunFailure.lost(0, "2", "host", "Command exited with code 137").message();
        Assert.assertTrue(killed.contains("spark.executor.memoryOverhead"), killed);
        Assert.assertFalse(killed.contains("heartbeat"), killed);
    }
}
