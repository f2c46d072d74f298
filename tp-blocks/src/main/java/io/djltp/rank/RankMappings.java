package io.djltp.rank;

import io.djltp.collective.Communicator;
import io.djltp.region.RegionMappings;

import java.util.HashMap;
import java.util.Map;

/** The autograd mappings of a rank, by who uses them: errors then name the user. */
final class RankMappings implements AutoCloseable {

    private final Map<String, RegionMappings> mappings = new HashMap<>();

    /** Returns the mappings of a user in a group; nobody is named with "". */
    RegionMappings get(String user, Communicator group) {
        return mappings.computeIfAbsent(
                user,
                name ->
                        name.isEmpty()
                                ? new RegionMappings(group)
                                : new RegionMappings(group, name));
    }

    /** Returns the first exception in a backward pass, and forgets it. */
    Throwable takeFailure() {
        Throwable first = null;
        for (RegionMappings users : mappings.values()) {
            Throwable failure = users.takeFailure();
            first = first == null ? failure : first;
        }
        return first;
    }

    @Override
    public void close() {
        mappings.values().forEach(RegionMappings::close);
    }
}
