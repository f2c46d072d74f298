/** The models of this library, as DJL finds them. */
package io.djltp.zoo.registry;
