package io.djltp.parameters;

import ai.djl.nn.Block;

import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Map;

/** What errors and counts call the blocks of a network: by their place in it. */
public final class BlockNames {

    private BlockNames() {}

    /**
     * Returns the names of all blocks.
     *
     * @param network the network
     * @return the path of each block, with its class where the path does not say it
     */
    public static Map<Block, String> of(Block network) {
        Map<Block, String> names = new IdentityHashMap<>();
        BlockWalk.of(network, (block, path, certain) -> names.put(block, name(block, path)));
        return Collections.unmodifiableMap(names);
    }

    private static String name(Block block, String path) {
        String type = block.getClass().getSimpleName();
        if (path.isEmpty()) {
            return type;
        }
        return path.contains(type) ? path : path + " (" + type + ")";
    }
}
