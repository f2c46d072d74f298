package io.djltp.training;

import static org.testng.Assert.assertTrue;

import org.testng.annotations.Test;

import java.util.BitSet;
import java.util.HashSet;
import java.util.Set;

/** What the ranks say of their frozen parameters is different where these are. */
public class FrozenParametersTest {

    private static final int PARAMETERS = 160;

    /** Sets that have as many parameters, and the same last one. */
    @Test
    public void setsOfOneSizeAndEndAreToldApart() {
        Set<String> said = new HashSet<>();
        for (int i = 0; i < PARAMETERS - 1; i++) {
            for (int j = 0; j < i; j++) {
                BitSet frozen = new BitSet();
                frozen.set(i);
                frozen.set(j);
                frozen.set(PARAMETERS - 1);
                String text = FrozenParameters.describe(frozen, PARAMETERS, "last");
                assertTrue(said.add(text), frozen + ": " + text);
            }
        }
    }
}
