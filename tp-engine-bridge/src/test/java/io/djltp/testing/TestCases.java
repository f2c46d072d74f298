package io.djltp.testing;

import java.util.Arrays;
import java.util.stream.Stream;

/** Cases of tests. */
public final class TestCases {

    private TestCases() {}

    /** Returns a case for each choice of one value from each list. */
    public static Object[][] product(Object[]... lists) {
        Object[][] cases = {{}};
        for (Object[] list : lists) {
            cases =
                    Arrays.stream(cases)
                            .flatMap(each -> Arrays.stream(list).map(value -> with(each, value)))
                            .toArray(Object[][]::new);
        }
        return cases;
    }

    /** Returns several lists of values one after the other. */
    public static Object[][] concat(Object[][]... lists) {
        return Stream.of(lists).flatMap(Arrays::stream).toArray(Object[][]::new);
    }

    private static Object[] with(Object[] values, Object value) {
        Object[] longer = Arrays.copyOf(values, values.length + 1);
        longer[values.length] = value;
        return longer;
    }
}
