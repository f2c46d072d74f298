package io.djltp.testing;

import ai.djl.ndarray.NDManager;

import io.djltp.internal.torch.Autograd;

import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;

/** A test that has a manager, and records the graph of what it computes. */
public abstract class RecordedTest {

    /** Of the test alone. */
    protected NDManager manager;

    private Autograd.GradMode mode; // of this thread: that of a test with a time-out is fresh

    @BeforeMethod(alwaysRun = true)
    public void open() {
        manager = NDManager.newBaseManager();
        mode = Autograd.gradMode(true);
    }

    @AfterMethod(alwaysRun = true)
    public void close() {
        mode.close();
        manager.close();
    }
}
