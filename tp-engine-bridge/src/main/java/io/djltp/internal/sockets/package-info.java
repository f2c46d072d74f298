/**
 * Contains the connections between the ranks of a job, over which the backend {@code tcp} talks.
 */
package io.djltp.internal.sockets;
