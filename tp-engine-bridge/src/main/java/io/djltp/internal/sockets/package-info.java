/**
 * Contains the connections between the ranks of a job, over which the backend {@code tcp} talks.
 */
@NullMarked
package io.djltp.internal.sockets;

import org.jspecify.annotations.NullMarked;
