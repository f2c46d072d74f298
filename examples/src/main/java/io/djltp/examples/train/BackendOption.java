package io.djltp.examples.train;

import io.djltp.launch.Backend;

import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.TypeConversionException;

import java.util.Iterator;
import java.util.List;

/** Reads the name of a backend, and lists the names for the help. */
final class BackendOption implements ITypeConverter<Backend>, Iterable<String> {

    BackendOption() {}

    /** {@inheritDoc} */
    @Override
    public Backend convert(String value) {
        try {
            return Backend.valueOf(value);
        } catch (IllegalArgumentException e) {
            throw new TypeConversionException(
                    "expected one of " + names() + " (case-insensitive) but was '" + value + "'");
        }
    }

    /** {@inheritDoc} */
    @Override
    public Iterator<String> iterator() {
        return names().iterator();
    }

    private static List<String> names() {
        return Backend.values().stream().map(Backend::getName).toList();
    }
}
