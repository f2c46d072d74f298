package io.djltp.mesh;

/**
 * How an array is cut over the ranks of a tensor-parallel group: in balanced ranges of its last
 * axis.
 *
 * @param total the length of the last axis over all ranks
 */
public record ShardedLayout(long total) {}
