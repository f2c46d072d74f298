package io.djltp.architecture;

import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.stream.Stream;

/** What breaks programs that were written against an earlier version. */
final class ApiChange {

    private static final String SUBCLASSES = " for subclasses";
    private static final String ABSTRACT = " must be written";

    private ApiChange() {}

    /**
     * Finds what breaks programs.
     *
     * @param before the facts of {@link PublicApi} that they were written against
     * @param now the facts of today
     * @return what is gone, and what those who extend a type now have to write
     */
    static List<String> between(Set<String> before, Collection<String> now) {
        Stream<String> gone =
                before.stream()
                        .filter(fact -> !now.contains(fact))
                        // who had to write a method may go on; and what was protected may be public
                        .filter(fact -> !fact.endsWith(ABSTRACT))
                        .filter(fact -> !now.contains(fact.replace(SUBCLASSES, "")))
                        .map(fact -> "gone: " + fact);
        Stream<String> demanded =
                now.stream()
                        .filter(fact -> fact.endsWith(ABSTRACT) && !before.contains(fact))
                        .filter(fact -> before.contains(typeOf(fact) + " can be extended"))
                        .map(fact -> "new: " + fact);
        return Stream.concat(gone, demanded).toList();
    }

    private static String typeOf(String fact) {
        return fact.substring(0, fact.indexOf(' '));
    }
}
