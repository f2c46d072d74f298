package io.djltp.rank;

import ai.djl.nn.Block;

import io.djltp.collective.Communicator;
import io.djltp.region.RegionMappings;

import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.stream.Stream;

/**
 * The autograd mappings of a rank, by who uses them: what their gradient hooks communicate is then
 * known to be the user's, in errors and counts.
 */
final class RankMappings implements AutoCloseable {

    private final Map<Block, RegionMappings> ofBlocks = new IdentityHashMap<>();
    private final Map<String, RegionMappings> ofOthers = new HashMap<>();
    private Map<Block, String> names = Map.of();

    /** Sets what blocks are called, if they have no mappings yet. */
    void setNames(Map<Block, String> names) {
        this.names = names;
    }

    /** Returns the mappings of a block in a group. */
    RegionMappings get(Block user, Communicator group) {
        return ofBlocks.computeIfAbsent(
                user,
                key -> {
                    String type = user.getClass().getSimpleName();
                    return new RegionMappings(group, names.getOrDefault(user, type));
                });
    }

    /** Returns the mappings of another user in a group; nobody is named with "". */
    RegionMappings get(String user, Communicator group) {
        return ofOthers.computeIfAbsent(
                user,
                name ->
                        name.isEmpty()
                                ? new RegionMappings(group)
                                : new RegionMappings(group, name));
    }

    /** Returns the first exception in a backward pass, and forgets it. */
    Throwable takeFailure() {
        Throwable first = null;
        for (RegionMappings users : all().toList()) {
            Throwable failure = users.takeFailure();
            first = first == null ? failure : first;
        }
        return first;
    }

    private Stream<RegionMappings> all() {
        return Stream.concat(ofOthers.values().stream(), ofBlocks.values().stream());
    }

    @Override
    public void close() {
        all().forEach(RegionMappings::close);
    }
}
