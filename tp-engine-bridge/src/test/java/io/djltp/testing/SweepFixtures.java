package io.djltp.testing;

import org.testng.IAnnotationTransformer;
import org.testng.annotations.IConfigurationAnnotation;

import java.lang.reflect.Constructor;
import java.lang.reflect.Method;

/**
 * Lets what prepares a class, and what tidies up after it, run for its sweeps too: of the methods
 * that are in no group TestNG takes none where a group is chosen. A listener of the profile {@code
 * sweep}.
 */
public final class SweepFixtures implements IAnnotationTransformer {

    /** {@inheritDoc} */
    @Override
    @SuppressWarnings("rawtypes") // TestNG's
    public void transform(
            IConfigurationAnnotation annotation,
            Class testClass,
            Constructor testConstructor,
            Method testMethod) {
        annotation.setGroups(new String[] {"sweep"});
    }
}
