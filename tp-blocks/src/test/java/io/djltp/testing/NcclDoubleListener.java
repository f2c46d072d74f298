package io.djltp.testing;

import org.testng.IInvokedMethod;
import org.testng.IInvokedMethodListener;
import org.testng.ITestResult;
import org.testng.SkipException;

import java.lang.reflect.InvocationTargetException;

/**
 * Loads the double of NCCL before the first test of a run on the {@code nccl} backend. The double
 * is part of the tests of the bridge; without a compiler for it, the tests of the run are skipped.
 */
public class NcclDoubleListener implements IInvokedMethodListener {

    private static final String DOUBLE = "io.djltp.internal.collective.nccl.NcclDouble";

    /** {@inheritDoc} */
    @Override
    public void beforeInvocation(IInvokedMethod method, ITestResult result) {
        if ("nccl".equals(System.getProperty("io.djltp.backend"))) {
            load();
        }
    }

    /**
     * Loads the double.
     *
     * @throws SkipException if it cannot be built
     */
    public static void load() {
        try {
            Class.forName(DOUBLE).getMethod("load").invoke(null);
        } catch (InvocationTargetException e) {
            if (e.getCause() instanceof SkipException) {
                throw (SkipException) e.getCause();
            }
            throw new IllegalStateException(e.getCause());
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("The tests of the bridge are not there", e);
        }
    }

    /** Calls a method of the double that takes nothing. */
    public static Object call(String method) {
        try {
            return Class.forName(DOUBLE).getMethod(method).invoke(null);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("The double has no " + method, e);
        }
    }

    /** Calls a method of the double that takes an argument. */
    public static Object call(String method, Class<?> type, Object argument) {
        try {
            return Class.forName(DOUBLE).getMethod(method, type).invoke(null, argument);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("The double has no " + method, e);
        }
    }
}
