package io.djltp.testing;

import io.djltp.internal.collective.nccl.NcclDouble;

import org.testng.IInvokedMethod;
import org.testng.IInvokedMethodListener;
import org.testng.ITestResult;

/**
 * Loads the double of NCCL before the first test of a run on the {@code nccl} backend. The double
 * is part of the tests of the bridge; without a compiler for it, the tests of the run are skipped.
 */
public class NcclDoubleListener implements IInvokedMethodListener {

    /** {@inheritDoc} */
    @Override
    public void beforeInvocation(IInvokedMethod method, ITestResult result) {
        if ("nccl".equals(System.getProperty("io.djltp.backend"))) {
            NcclDouble.load();
        }
    }
}
